import pytest

from gnn_dist.cluster import doctor


@pytest.fixture
def broken_packages(tmp_path, monkeypatch):
    """Packages that fail in the ways in which real ones do."""
    (tmp_path / "fails_by_name.py").write_text("import nothing_of_this_name\n")
    (tmp_path / "fails_to_load.py").write_text("raise OSError('libfoo.so: wrong ABI\\nmore')\n")
    (tmp_path / "crashes.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    (tmp_path / "talks.py").write_text("print('hello')\ndef start():\n    print('again')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def test_parts_say_why_they_do_not_work_and_a_crash_hides_none(broken_packages):
    wanted = {
        "first": ("fails_by_name",),
        "second": ("crashes", "talks"),
        "third": ("fails_to_load",),
        "fourth": ("talks:start", "json"),
        "fifth": ("absent_package.module",),
    }
    ray_train, *checks = doctor.parts(wanted)
    assert ray_train.status == "ok"
    found = {check.name: check for check in checks}
    assert {name: check.status for name, check in found.items()} == {
        "first": "missing",
        "second": "missing",
        "third": "missing",
        "fourth": "ok",
        "fifth": "missing",
    }
    assert found["first"].detail == "No module named 'nothing_of_this_name'"
    assert found["second"].detail == "crashes ended its process (-11)"
    assert found["third"].detail == "libfoo.so: wrong ABI"
    assert found["fifth"].detail == "No module named 'absent_package'"
    assert found["first"].remedy == "run: pip install 'gnn-dist[first]'"


def test_everything_is_described_with_a_remedy_where_it_is_not_well(monkeypatch):
    monkeypatch.setattr(doctor, "OPTIONAL", {})
    monkeypatch.setattr(doctor, "REQUIRED", ("torch", "no-such-package"))
    monkeypatch.setattr(doctor, "_FILES_WANTED", 1 << 60)
    monkeypatch.setattr(doctor, "_SHM_WANTED", 1 << 60)
    monkeypatch.setattr(doctor, "parts", lambda: [])
    checks = {check.name: check for check in doctor.collect()}
    assert checks["no-such-package"].status == "warning"
    assert checks["open files"].status == "warning"
    assert "ulimit -n" in checks["open files"].remedy
    assert "--shm-size" in checks["/dev/shm"].remedy
    for name in ("python", "torch", "cores", "memory", "allocator", "gpu", "gloo", "nccl"):
        assert checks[name].detail
    text = doctor.describe()
    assert "-> run: pip install no-such-package" in text
    assert all(name in text for name in checks)
