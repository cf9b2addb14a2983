"""The door that a worker process is started by: `python -m fathom.worker`, in this checkout or another one."""

from fathom.experiments.worker import main

if __name__ == "__main__":
    main()
