"""Runs a solution of an exercise under `uiw run`, looks at what it printed and sent, and says PASS or what is missing.

python3 check.py EXERCISE PROGRAM: the number of the exercise (1 to 5) and the compiled program. UIW names another uiw than the one of PATH.
The client's capture stays in exercise-N.pcapng, for `uiw decode`. The exit code is 0 for PASS, 1 otherwise, 2 for a wrong command line."""

import json
import os
import shutil
import subprocess
import sys

UIW = os.environ.get("UIW", "uiw")


def wrong(what):
    print(f"not yet: {what}")
    sys.exit(1)


def ended(process, seconds=10):
    """What a process printed, or None if it did not end in time."""
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None


def start(options, command):
    return subprocess.Popen([UIW, "run", *options, "--", *command], stdout=subprocess.PIPE, text=True)


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("1", "2", "3", "4", "5"):
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    if not os.access(sys.argv[2], os.X_OK):
        print(f"{sys.argv[2]} is no program", file=sys.stderr)
        sys.exit(2)
    if not shutil.which(UIW):
        sys.exit(f"there is no program {UIW}; the variable UIW names another one")
    number, program = int(sys.argv[1]), os.path.abspath(sys.argv[2])
    capture = f"exercise-{number}.pcapng"
    options = ["--persona", "roce"] if number == 5 else []
    server = start(options, [program, "server"])
    port = server.stdout.readline().split()[-1:]
    if not port:
        wrong("the server ended before it listened")
    client = start([*options, "--pcap", capture], [program, "client", *port])
    printed = ended(client)
    by_server = ended(server, 3)
    decoded = subprocess.run([UIW, "decode", "--json", capture], stdout=subprocess.PIPE, text=True)
    found = [json.loads(line) for line in decoded.stdout.splitlines()]
    # Messages without payload are uiw's own.
    messages = [each for each in found if each["type"] == "message" and (each["length"] or "terminate" in each)]
    to_server = [each["name"] for each in messages if each["to"].endswith(f":{port[0]}")]
    to_client = [each["name"] for each in messages if each["from"].endswith(f":{port[0]}")]
    terminates = [each["terminate"] for each in messages if each.get("terminate")]
    if terminates and number != 4:
        why = {1: "a receive is missing (GAP 1); ", 2: "the right or the key is missing (GAP 1 and 2); "}.get(number, "")
        wrong(f"{why}the connection ended with a Terminate: {terminates[0]['reason']} (uiw decode {capture})")
    exercise = [messages_exercise, memory_exercise, channel_exercise, key_exercise, multicast_exercise][number - 1]
    exercise(printed, by_server, to_server, to_client, terminates, found)
    if printed is None or client.returncode:
        wrong("the client does not end well")
    print("PASS")


def messages_exercise(printed, by_server, to_server, to_client, *_):
    if "Send" not in to_server:
        wrong("no Send left the client: GAP 2")
    if "Send" not in to_client:
        wrong("the server sent no answer: it needs a receive (GAP 1) and GAP 4")
    if "client got pong" not in (printed or ""):
        wrong("the client did not get the answer: GAP 3")


def memory_exercise(printed, by_server, to_server, to_client, *_):
    if "RDMA Write" not in to_server:
        wrong("no Write left the client")
    if "RDMA Read Response" not in to_client:
        wrong("no bytes were read: GAP 3")
    if "client read one-sided" not in (printed or ""):
        wrong("the client read other bytes than it had written: GAP 2")


def channel_exercise(printed, *_):
    if printed is None:
        wrong("the client waits for ever: arm the queue before you poll it, and poll until it is empty (GAP 1 and 2)")
    if "client got 8 messages" not in printed:
        wrong("the client did not get 8 messages")
    polls = int(printed.split("polls ")[1])
    if polls > 64:
        wrong(f"the client polled {polls} times: sleep in ibv_get_cq_event (GAP 2)")


def key_exercise(printed, by_server, to_server, to_client, terminates, _):
    if not terminates:
        wrong("the peer answered, so the key was right: GAP 1")
    seen = "{layer}/{etype}/0x{code:02x}".format(**terminates[0])
    if f"terminate {seen}" not in (printed or ""):
        wrong("the program does not say which Terminate is in the capture (uiw decode exercise-4.pcapng): GAP 2")


def multicast_exercise(printed, by_server, to_server, to_client, terminates, found):
    if not any(each["type"] == "datagram" and each.get("destination_qpn") == 0xFFFFFF for each in found):
        wrong("no datagram left the client for the group: GAP 1")
    if by_server is None or "server got group" not in by_server:
        wrong("the server did not print the text: GAP 2")


main()
