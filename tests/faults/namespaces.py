"""Network namespaces of this machine stand for hosts: their ranks share no memory and meet over virtual cables."""
import subprocess
import time

PROGRAMS = ["ip", "unshare", "nsenter"]


class Host:
    """A network namespace without a name, held by a process that waits for the end of its input: however its maker ends, it
    ends as well. It has a /sys of its own, where UCX looks for network devices."""

    def __init__(self):
        hold = "mount -t sysfs none /sys && ip link set lo up && echo ready && exec cat"
        self.holder = subprocess.Popen(["unshare", "--net", "--mount", "sh", "-c", hold], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.ready = self.holder.stdout.readline() == "ready\n"

    def inside(self, *words):
        return ["nsenter", "-t", str(self.holder.pid), "-n", "-m", *words]

    def do(self, *words):
        """Runs a command inside and gives its output; raises CommandFailed."""
        done = subprocess.run(self.inside(*words), capture_output=True, text=True)
        if done.returncode != 0:
            raise CommandFailed(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def wait_for_cable(self, name):
        """The kernel takes its time to call a cable connected, and UCX uses none that is not."""
        deadline = time.monotonic() + 10
        while "state UP" not in self.do("ip", "link", "show", name):
            if time.monotonic() > deadline:
                raise CommandFailed(f"{name} is not connected after 10 s")
            time.sleep(0.02)

    def close(self):
        self.holder.communicate()


class CommandFailed(Exception):
    pass


def lay_cable(one, name, other, other_name):
    """Both ends are born inside, so that this machine's own network never sees them."""
    one.do("ip", "link", "add", name, "type", "veth", "peer", "name", other_name, "netns", str(other.holder.pid))
    one.do("ip", "link", "set", name, "up")
    other.do("ip", "link", "set", other_name, "up")
