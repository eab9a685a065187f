from gnn_dist.cli import main

raise SystemExit(main())
