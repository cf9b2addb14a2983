"""The door that a worker process is started by: `python -m fathom.worker`, in this checkout or another one."""

import signal

if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))  # until the supervisor handles them
    from fathom.experiments.worker import main

    main()
