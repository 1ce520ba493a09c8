#!/usr/bin/env python3
"""Runs what a Kubernetes manifest's pods would run, without Kubernetes.

    run_manifest.py MANIFEST FOLDER_WITH_PROGRAMS

Takes a JobSet or PyTorchJob apart into pods, with the names and variables that their controllers give them, checks what
has to agree within the file, and runs each pod's command in a network namespace where the pods' names resolve. Nodes,
processes and steps are cut down to what this machine can bear. The job must end with the result line that as many
processes print under lockstep-run on one machine.

Status: 0 as it should be, 1 not, 77 (with the reason) where it cannot be tried.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile

PROCESSES = 1  # in each pod
STEPS = 20
LIMIT_S = 120


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def require(holds, what):
    if not holds:
        sys.exit(f"{sys.argv[1]}: {what}")


def the_container(pod_template, name=None):
    containers = pod_template["spec"]["containers"]
    require(len(containers) == 1, "one container a pod is expected")
    require(name is None or containers[0]["name"] == name, f"the container must be named {name}")
    return containers[0]


def pods_of(job):
    """(name, variables of the controller, container, pod template) of each pod."""
    name = job["metadata"]["name"]
    if job["kind"] == "JobSet":
        require(job["apiVersion"] == "jobset.x-k8s.io/v1alpha2", "unexpected apiVersion")
        (group,) = job["spec"]["replicatedJobs"]
        spec = group["template"]["spec"]
        require(group["replicas"] == 1, "one job is expected, with a pod a node")
        require(spec["completionMode"] == "Indexed", "pods need an index")
        require(spec["parallelism"] == spec["completions"], "all pods must run at once")
        require(spec["backoffLimit"] == 0, "a pod that fails must restart all")
        require(job["spec"]["network"]["enableDNSHostnames"], "pods need names")
        for i in range(spec["parallelism"]):
            host = f"{name}-{group['name']}-0-{i}.{name}"
            yield host, {"JOB_COMPLETION_INDEX": str(i)}, the_container(spec["template"]), spec["template"]
    else:
        require(job["kind"] == "PyTorchJob" and job["apiVersion"] == "kubeflow.org/v1", "unexpected kind or apiVersion")
        specs = job["spec"]["pytorchReplicaSpecs"]
        require(specs["Master"]["replicas"] == 1, "there is one master")
        world = 1 + specs["Worker"]["replicas"]
        port = next(
            port["containerPort"]
            for port in the_container(specs["Master"]["template"], "pytorch")["ports"]
            if port["name"] == "pytorchjob-port"
        )
        for rank in range(world):
            kind = "master" if rank == 0 else "worker"
            template = specs[kind.capitalize()]["template"]
            variables = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "MASTER_ADDR": f"{name}-master-0",
                "MASTER_PORT": str(port),
                "PYTHONUNBUFFERED": "0",
            }
            yield f"{name}-{kind}-{max(rank - 1, 0)}", variables, the_container(template, "pytorch"), template


def expanded(text, variables):
    """$(NAME), as the kubelet does it: unknown names stay."""
    return re.sub(r"\$\((\w+)\)", lambda match: variables.get(match[1], match[0]), text)


def with_option(command, name, value):
    found = [i for i, word in enumerate(command) if word.startswith(f"--{name}=")]
    require(len(found) == 1, f"--{name}=... is expected once")
    return [f"--{name}={value}" if i == found[0] else word for i, word in enumerate(command)]


def option(command, name):
    return next(word.split("=", 1)[1] for word in command if word.startswith(f"--{name}="))


def check(job, pods):
    """What Kubernetes would not notice."""
    for host, _, container, template in pods:
        command = container["command"] + container["args"]
        require(int(option(command, "nnodes")) == len(pods), f"--nnodes is not the number of pods, {len(pods)}")
        require(option(command, "master-addr") == pods[0][0], f"--master-addr is not the first pod, {pods[0][0]}")
        port = int(option(command, "master-port"))
        require(port in [p["containerPort"] for p in container["ports"]], "--master-port is not among the ports")
        volumes = {volume["name"] for volume in template["spec"]["volumes"]}
        require({mount["name"] for mount in container["volumeMounts"]} == volumes, "volumes and mounts differ")
        require(template["spec"]["terminationGracePeriodSeconds"] > 30, "lockstep-run must outlive its workers")
        token = next(variable for variable in container["env"] if variable["name"] == "LOCKSTEP_TOKEN")
        require("value" not in token and "secretKeyRef" in token["valueFrom"], "the token must come from a secret")
    names = [pod[0] for pod in pods]
    require(len(set(names)) == len(names), "two pods have one name")
    return f"{job['kind']} of {len(pods)} pods"


def run(*command, **options):
    return subprocess.run(command, check=True, capture_output=True, text=True, **options)


class Cluster:
    """A namespace for each pod, with a cable to a router. ip netns exec shows a pod the hosts file of its namespace."""

    def __init__(self, names):
        self.prefix = f"lsm{os.getpid() % 10000}"
        self.names = names
        self.spaces = [f"{self.prefix}p{i}" for i in range(len(names))]
        self.hosts = "127.0.0.1 localhost\n" + "".join(
            f"{self.address(i)} {name} {name.split('.')[0]}\n" for i, name in enumerate(names)
        )

    @staticmethod
    def address(pod):
        return f"10.79.{pod + 1}.2"

    def __enter__(self):
        try:
            self.build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', None) or error}")
        return self

    def build(self):
        router = self.prefix + "r"
        run("ip", "netns", "add", router)
        run("ip", "netns", "exec", router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for i, space in enumerate(self.spaces):
            gateway = f"10.79.{i + 1}.1"
            run("ip", "netns", "add", space)
            run("ip", "-n", router, "link", "add", space, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", router, "addr", "add", gateway + "/24", "dev", space)
            run("ip", "-n", router, "link", "set", space, "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            run("ip", "-n", space, "addr", "add", self.address(i) + "/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "route", "add", "default", "via", gateway)
            os.makedirs(f"/etc/netns/{space}")
            with open(f"/etc/netns/{space}/hosts", "w", encoding="utf-8") as file:
                file.write(self.hosts)

    def __exit__(self, *_):
        for space in [self.prefix + "r", *self.spaces]:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
            shutil.rmtree(f"/etc/netns/{space}", ignore_errors=True)
        try:
            os.rmdir("/etc/netns")
        except OSError:
            pass


def outcome(text):
    """What a result line says of the training itself."""
    lines = [line for line in text.splitlines() if "result: " in line]
    require(len(lines) == 1, f"one result line is expected, found {len(lines)}:\n{text}")
    return [word for word in lines[0].split() if word.split("=")[0] in ("test_accuracy", "steps", "weights_sha256")]


def main():
    manifest, programs = sys.argv[1:]
    try:
        import yaml
    except ImportError:
        skip("Python's yaml is not here (Debian: python3-yaml)")
    with open(manifest, encoding="utf-8") as file:
        (job,) = yaml.safe_load_all(file)
    pods = list(pods_of(job))
    print(check(job, pods))
    if not os.environ.get("LOCKSTEP_DATA"):
        skip("what the manifest says agrees; the pods were not run: LOCKSTEP_DATA is not set")

    base = {name: os.environ[name] for name in ("HOME", "LOCKSTEP_DATA", "TMPDIR", "ASAN_OPTIONS") if name in os.environ}
    base["PATH"] = programs + ":" + os.environ["PATH"]
    cut = ["--model=lenet", "--batch-size=64", f"--max-steps={STEPS}", "--timeout=60"]
    with tempfile.TemporaryDirectory() as scratch, Cluster([pod[0] for pod in pods]) as cluster:
        started = []
        for i, (_, variables, container, _) in enumerate(pods):
            variables = dict(variables)
            for variable in container["env"]:
                variables[variable["name"]] = variable.get("value", "a-secret-of-this-test-alone")
            command = [expanded(word, variables) for word in container["command"] + container["args"]]
            command = with_option(command, "nproc-per-node", PROCESSES)
            command = with_option(command, "checkpoint", scratch + "/run.safetensors")
            started.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", cluster.spaces[i], *command, *cut],
                    env={**variables, **base},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            outputs = [process.communicate(timeout=LIMIT_S)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        everything = "\n".join(outputs)
        require(all(process.returncode == 0 for process in started), f"a pod failed:\n{everything}")
        require(os.path.exists(scratch + "/run.safetensors"), "no checkpoint was written")
        found = outcome(everything)

    program = container["args"][container["args"].index("--") + 1 :]
    program = [word for word in program if not word.startswith(("--checkpoint", "--resume"))]
    one_machine = run(
        "lockstep-run", f"--nproc-per-node={len(pods) * PROCESSES}", "--", *program, *cut, env=base, timeout=LIMIT_S
    )
    expected = outcome(one_machine.stdout)
    require(found == expected, f"expected {expected} as on one machine, found {found}")
    print(" ".join(found))


main()
