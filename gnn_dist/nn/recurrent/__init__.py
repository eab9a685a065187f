"""Recurrent models over snapshots."""
