"""Many runs, each in a process of its own: study, repetition, core scaling, interleaving."""
