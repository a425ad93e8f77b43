import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before a library reads it: no test waits for a network
