"""Hosts made of network namespaces of this machine: their ranks share no memory and communicate over virtual cables. Takes root."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

PROGRAMS = ["ip", "tc", "unshare", "nsenter", "mount"]
PORT = 29500  # MASTER_PORT
INTERFACE = "cable"  # the network interface of every host

# The process that holds a namespace. When its input ends, it kills everything that still runs in its network namespace, and exits.
HOLD = """
mount -t sysfs none /sys && ip link set lo up && echo "$0" >/proc/sys/kernel/hostname && echo ready || exit 1
cat
found=1
while [ $found ]; do
  found=
  for process in /proc/[0-9]*; do
    [ $process/ns/net -ef /proc/$$/ns/net ] && [ $process != /proc/$$ ] && kill -9 ${process#/proc/} && found=1
  done
done 2>/dev/null
"""

# Sends to the other end and receives from it at the same time; prints the bytes received per second.
STREAM = """
import socket, sys, threading, time
listens, address, total = sys.argv[1] == "listen", sys.argv[2], int(sys.argv[3])
if listens:
    link = socket.create_server((address, 29400)).accept()[0]
else:
    for attempt in range(100):
        try:
            link = socket.create_connection((address, 29400))
            break
        except OSError:
            time.sleep(0.05)
piece = bytearray(1 << 20)
def send():
    for _ in range(total // len(piece)):
        link.sendall(piece)
sender = threading.Thread(target=send)
sender.start()
buffer = bytearray(1 << 20)
left = total - link.recv_into(buffer, 1)
start = time.monotonic()
while left > 0:
    left -= link.recv_into(buffer, min(left, len(buffer)))
print(total / (time.monotonic() - start))
sender.join()
"""


class CommandFailed(Exception):
    pass


def obstacle():
    """Why this machine cannot have such hosts, as a sentence; empty if it can."""
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if os.geteuid() == 0 and not missing:
        return ""
    return (f"network namespaces take root and the programs {', '.join(PROGRAMS)}; "
            f"{'missing: ' + ', '.join(missing) if missing else 'run this as root'}.")


class Host:
    """A network namespace without a name, held by a process that waits for the end of its input: when the process that made it
    ends, in whichever way, the holder ends as well, and so does everything inside. The host has a name, and a /sys of its own,
    where UCX looks for network devices."""

    def __init__(self, name="host"):
        # A session of its own: an interrupt from the terminal must not keep it from tidying up.
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "--uts", "sh", "-c", HOLD, name], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.ready = self.holder.stdout.readline() == "ready\n"

    def inside(self, *words):
        return entering(self.holder.pid, *words)

    def do(self, *words):
        """Runs a command inside and returns its output; raises CommandFailed."""
        done = subprocess.run(self.inside(*words), capture_output=True, text=True)
        if done.returncode != 0:
            raise CommandFailed(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def wait_for_cable(self, name=INTERFACE):
        """UCX uses connected cables only, and the kernel calls a new cable connected after a moment."""
        deadline = time.monotonic() + 10
        while "state UP" not in self.do("ip", "link", "show", name):
            if time.monotonic() > deadline:
                raise CommandFailed(f"{name} is not connected after 10 s")
            time.sleep(0.02)

    def hold_to(self, rate, burst="128kb", name=INTERFACE):
        """Limits what leaves through that end of a cable, by a token bucket."""
        self.do("tc", "qdisc", "replace", "dev", name, "root", "tbf", "rate", rate, "burst", burst, "latency", "50ms")

    def close(self):
        self.holder.communicate()


def entering(holder, *words):
    # Entering a mount namespace changes the working directory to its root.
    return ["nsenter", "-t", str(holder), "-n", "-m", "-u", "env", "-C", os.getcwd(), *map(str, words)]


def lay_cable(one, name, other, other_name):
    """Both ends are made inside the namespaces, so that this machine's own network never sees them."""
    one.do("ip", "link", "add", name, "type", "veth", "peer", "name", other_name, "netns", str(other.holder.pid))
    one.do("ip", "link", "set", name, "up")
    other.do("ip", "link", "set", other_name, "up")


class Network:
    """Hosts with a cable each to a switch, and a job's ranks spread over them: ranks[i] on host i. Without a rate, cables are not
    limited. Closed by close() or at the end of `with`."""

    def __init__(self, ranks, rate="1gbit", burst="128kb"):
        self.ranks = ranks
        self.known = {"GLOO_SOCKET_IFNAME": INTERFACE,  # Gloo finds its interface by this name
                      "STRETTO_INSECURE": "1",  # nobody else reaches these networks
                      "TORCH_CPP_LOG_LEVEL": "ERROR"}  # PyTorch would warn that the hosts' names cannot be looked up
        if rate:
            self.known["STRETTO_NETWORK"] = network_setting(rate)  # Stretto chooses methods by the network's rate
        self.hosts = []
        self.addresses = [f"10.213.{7 + i // 250}.{i % 250 + 1}" for i in range(len(ranks))]
        try:
            self.join(rate, burst)
        except BaseException:
            self.close()
            raise

    def join(self, rate, burst):
        for i in range(len(self.ranks) + 1):
            self.hosts.append(Host(f"host{i}" if i < len(self.ranks) else "switch"))
            if not self.hosts[-1].ready:
                raise CommandFailed("network namespaces cannot be made here")
        *hosts, switch = self.hosts
        switch.do("ip", "link", "add", "switch", "type", "bridge")
        switch.do("ip", "link", "set", "switch", "up")
        for i, host in enumerate(hosts):
            lay_cable(host, INTERFACE, switch, f"port{i}")
            switch.do("ip", "link", "set", f"port{i}", "master", "switch")
            if rate is not None:
                host.hold_to(rate, burst)
                switch.hold_to(rate, burst, f"port{i}")
            host.do("ip", "address", "add", f"{self.addresses[i]}/16", "dev", INTERFACE)
        for host in hosts:
            host.wait_for_cable()

    def close(self):
        for host in self.hosts:
            host.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def stream(self, total=256 << 20):
        """Bytes per second of a bare TCP stream between the first two hosts, in both directions at once; the slower direction."""
        ends = [subprocess.Popen(host.inside(sys.executable, "-c", STREAM, role, self.addresses[0], total),
                                 stdout=subprocess.PIPE, text=True) for host, role in zip(self.hosts, ["listen", "connect"])]
        return min(float(end.communicate()[0]) for end in ends)

    def start(self, command, environment=None, **how):
        """Starts every rank of a job, rank 0 first, with the variables that torchrun sets. how: arguments of subprocess.Popen, each the
        same for all ranks or a function of the rank."""
        started = []
        for host, ranks in enumerate(self.ranks):
            for local_rank in range(ranks):
                rank = len(started)
                variables = {"RANK": rank, "WORLD_SIZE": sum(self.ranks), "LOCAL_RANK": local_rank, "LOCAL_WORLD_SIZE": ranks,
                             "GROUP_RANK": host, "MASTER_ADDR": self.addresses[0], "MASTER_PORT": PORT}
                started.append(subprocess.Popen(
                    self.hosts[host].inside(*command), env=self.variables({**variables, **(environment or {})}),
                    **{name: value(rank) if callable(value) else value for name, value in how.items()}))
        return started

    def run(self, command):
        """Runs a job to its end without output; raises CommandFailed if a rank fails."""
        self.output_of(command)

    def output_of(self, command, environment=None, stream="stdout"):
        """Runs a job to its end and returns what rank 0 printed there; raises CommandFailed if a rank fails."""
        kept = {stream: lambda rank: subprocess.PIPE if rank == 0 else subprocess.DEVNULL}
        ranks = self.start(command, environment, **{"stdout": subprocess.DEVNULL, **kept}, text=True)
        output = "".join(filter(None, ranks[0].communicate()))
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            raise CommandFailed(f"{' '.join(map(str, command))} ended with {statuses}")
        return output

    def start_mpi(self, command, environment=None, options=(), **how):
        """Starts mpirun on the first host, which starts the ranks: over TCP between hosts, over shared memory inside."""
        holders = ",".join(f"{address}={host.holder.pid}" for address, host in zip(self.addresses, self.hosts))
        agent = f"{sys.executable} -B {os.path.abspath(__file__)}"
        slots = ",".join(f"{address}:{ranks}" for address, ranks in zip(self.addresses, self.ranks))
        mpirun = shutil.which("mpirun.openmpi") or shutil.which("mpirun")
        if mpirun is None:
            raise CommandFailed("there is no mpirun; install Open MPI")
        words = [mpirun, "--allow-run-as-root", "--host", slots, "-n", sum(self.ranks), "--map-by", "slot", "--bind-to", "none"]
        settings = {"plm_rsh_agent": agent, "pml": "ob1", "btl": "self,vader,tcp", "btl_tcp_if_include": INTERFACE,
                    "oob_tcp_if_include": INTERFACE, "mpi_yield_when_idle": 1}
        for name, value in settings.items():
            words += ["--mca", name, value]
        return subprocess.Popen(self.hosts[0].inside(*words, *options, *command),
                                env=self.variables({"NETLAB_HOLDERS": holders, **(environment or {})}), **how)

    def variables(self, more):
        return {**os.environ, **self.known, **{name: str(value) for name, value in more.items()}}


# Units of rates as tc writes them: the unit of STRETTO_NETWORK, and bytes per second.
UNITS = {"gbit": ("Gb/s", 1e9 / 8), "mbit": ("Mb/s", 1e6 / 8), "gbps": ("GB/s", 1e9), "mbps": ("MB/s", 1e6)}


def number_and_unit(rate):
    found = re.fullmatch(rf"(\d+(?:\.\d+)?)({'|'.join(UNITS)})", rate.lower())
    if not found or float(found[1]) == 0:
        raise CommandFailed(f"'{rate}' is no rate of a link; give a number above 0 in gbit, mbit, gbps or mbps, like 1gbit.")
    return found[1], UNITS[found[2]]


def bytes_per_second(rate):
    number, (_, factor) = number_and_unit(rate)
    return float(number) * factor


def network_setting(rate):
    """STRETTO_NETWORK for a rate. The latency is that of a message between two namespaces."""
    number, (name, _) = number_and_unit(rate)
    return f"{number}{name},40us"


def require():
    """Exits with an error if this machine cannot have such hosts."""
    if why := obstacle():
        sys.exit(f"error: {why}")


def exit_with(main):
    """Runs main() and exits with its status. Networks are closed on SIGTERM and SIGINT as well."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except CommandFailed as reason:
        sys.exit(f"error: {reason}")
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def enter_as_remote_shell(address, command):
    """Takes the place of ssh for mpirun: runs a command, words for a shell, on the host of that address."""
    holders = dict(pair.split("=") for pair in os.environ["NETLAB_HOLDERS"].split(","))
    words = entering(holders[address], "sh", "-c", " ".join(command))
    os.execvp(words[0], words)


if __name__ == "__main__":
    enter_as_remote_shell(sys.argv[1], sys.argv[2:])
