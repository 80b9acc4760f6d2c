"""What somebody who is no rank of a job may do to its ports:

    strangers.py ATTACK SECONDS HOST:PORT... [< what a rank once sent]

attacks all of these ports again and again for so many seconds."""
import os
import random
import resource
import socket
import sys
import threading
import time

UCX = bytes.fromhex("78563412bebafeca")  # how connections between sockets of UCX begin


def connected(address):
    stranger = socket.socket()
    stranger.settimeout(0.05)
    try:
        stranger.connect(address)
    except OSError:  # nobody listens, or too many have come
        stranger.close()
        return None
    return stranger


def say(address, words, patience=0.0):
    """Connects, says it, waits for an answer or the end, and goes away. A rank may hang up at any time."""
    stranger = connected(address)
    if stranger is None:
        return time.sleep(0.01)
    with stranger:
        try:
            stranger.sendall(words)
            if patience:
                stranger.settimeout(patience)
                stranger.recv(4096)
        except OSError:
            pass


def scan(addresses, _):
    for host in {host for host, _ in addresses}:
        for port in [port for _, port in addresses] * 20 + random.sample(range(1024, 65536), 100):
            if stranger := connected((host, port)):
                stranger.close()


def garbage(addresses, _):
    for address in addresses:
        say(address, random.choice([b"", b"GET / HTTP/1.1\r\n\r\n"]) + os.urandom(random.choice([1, 8, 100, 5000])), 0.05)


def babble(addresses, _):
    """UCX's greeting, and garbage."""
    for address in addresses:
        say(address, UCX + os.urandom(random.choice([1, 5, 100, 5000])), 0.05)


def crowd(addresses, _):
    """1,000 connections that say nothing."""
    strangers = []
    for address in addresses * 1000:
        strangers.append(socket.socket())
        strangers[-1].setblocking(False)
        strangers[-1].connect_ex(address)
    time.sleep(5)
    for stranger in strangers:
        stranger.close()


def trickle(addresses, words):
    """Slow-loris: a byte from time to time."""
    strangers = list(filter(None, [connected(address) for address in addresses for _ in range(20)]))
    for byte in words[:10] or b"slow loris":
        for stranger in strangers:
            try:
                stranger.send(bytes([byte]))
            except OSError:
                pass
        time.sleep(0.2)
    for stranger in strangers:
        stranger.close()


def replay(addresses, words):
    """What a rank once said, whole, cut off, and with bytes changed."""
    for address in addresses:
        changed = bytearray(words)
        changed[random.randrange(len(words))] ^= 1 << random.randrange(8)
        for said in (words, words[:random.randrange(len(words))], bytes(changed), words * 3):
            say(address, said, 0.05)


def oversized(addresses, words):
    """The beginning of what a rank once said, then more than anybody expects."""
    for address in addresses:
        say(address, words[:8] + b"\xff" * 16 + os.urandom(1 << 20), 0.05)


ATTACKS = {attack.__name__: attack for attack in (scan, garbage, crowd, trickle, babble, replay, oversized)}


def main():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    attack, seconds = ATTACKS[sys.argv[1]], float(sys.argv[2])
    addresses = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[3:])]
    words = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    end = time.monotonic() + seconds

    def again():
        while time.monotonic() < end:
            attack(addresses, words)

    threads = [threading.Thread(target=again) for _ in range(1 if attack is crowd else 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
