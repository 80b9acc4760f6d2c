"""A port for a test's listener that no connection of another test takes in the meantime."""
import pathlib
import random
import socket

# The system gives ports from here on to connections that name none.
FIRST_OF_CONNECTIONS = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
choices = random.SystemRandom()  # processes that are forked from one test do not choose alike


def free_port(count=1):
    """The first of so many neighbouring ports on which nothing listens."""
    while True:
        first = choices.randrange(10000, FIRST_OF_CONNECTIONS - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("", port))
            return first
        except OSError:
            pass
