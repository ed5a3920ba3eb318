#!/run/torpor/tools/bin/busybox sh
# PID 1 of the guest, from the read-only tools disk: sets the machine up, then keeps the agent
# running. The shell reaps orphans while it waits for the agent.

tools=/run/torpor/tools
cgroup=/run/torpor/cgroup
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/root

say() { echo "torpor: $*" >/dev/console; }

# The kernel drops a signal to PID 1 that has no handler. But this shell handles INT, by ending,
# so give it a handler that does nothing (not "", which the agent would inherit as "ignored").
trap : INT

# An orderly end: programs are asked to end and have some seconds for it, and what they wrote is on
# the disk, which then needs no repair.
shut_down() {
    trap '' TERM USR1 USR2
    say "the machine is to $1: ending its programs"
    kill -KILL $agent
    echo 0 >$cgroup/user/cgroup.freeze
    # shellcheck disable=SC2046 # the words are wanted
    kill -TERM $(programs)
    tries=0
    while [ -n "$(programs)" ] && [ $tries -lt 50 ]; do
        tries=$((tries + 1))
        usleep 100000
    done
    echo 1 >$cgroup/user/cgroup.kill
    [ -d $cgroup/hooks ] && echo 1 >$cgroup/hooks/cgroup.kill
    sync
    # A disk in a slot. Where something holds on to it, it is clean after the sync all the same.
    umount /workspace 2>/dev/null || mount -o remount,ro /workspace 2>/dev/null
    # What was killed may need a moment to let go of its files.
    until mount -o remount,ro / 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -gt 100 ] && say "the root disk is still written to" && break
        usleep 100000
    done
    "$1" -f
}
programs() { find $cgroup/user -name cgroup.procs -exec cat {} + 2>/dev/null; }

# What busybox's `halt`, `poweroff` and `reboot` (without -f) send to PID 1, and our agent for those
# of other packages.
trap 'shut_down poweroff' USR1 USR2
trap 'shut_down reboot' TERM

umask 022
cd /

# devtmpfs has the device nodes only.
mkdir -p /dev/pts /dev/shm
mount -t devpts -o nosuid,noexec,gid=5,mode=620,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o nosuid,nodev,mode=1777 shm /dev/shm
ln -sf /proc/self/fd /dev/fd
ln -sf /proc/self/fd/0 /dev/stdin
ln -sf /proc/self/fd/1 /dev/stdout
ln -sf /proc/self/fd/2 /dev/stderr

hostname=
[ -f /etc/hostname ] && read -r hostname </etc/hostname
[ -n "$hostname" ] && echo "$hostname" >/proc/sys/kernel/hostname
ip link set lo up

# Empty or missing means "to be made" (machine-id(5)).
if [ ! -s /etc/machine-id ]; then
    read -r uuid </proc/sys/kernel/random/uuid
    mkdir -p /etc
    echo "${uuid//-/}" >/etc/machine-id
fi

# The image needs no kernel modules and no modprobe of its own.
read -r _ _ release _ </proc/version
mkdir -p "/lib/modules/$release"
mount --bind "$tools/lib/modules/$release" "/lib/modules/$release"
echo "$tools/sbin/modprobe" >/proc/sys/kernel/modprobe
# Nodes whose first open loads the module (tun, fuse, loop and the like; made by depmod).
while read -r module node numbers; do
    case $module in
    fuse | tun | loop)
        case $node in */*) mkdir -p "/dev/${node%/*}" ;; esac
        major=${numbers#c}
        [ -e "/dev/$node" ] || mknod -m 666 "/dev/$node" c "${major%:*}" "${numbers#*:}"
        ;;
    esac
done <"$tools/lib/modules/$release/modules.devname"

# What the kernel does by itself, all the time, keeps a processor of the host awake, for each idle
# machine: counters gathered every second, memory moved together before anybody asks for it.
echo 60 >/proc/sys/vm/stat_interval
echo 0 >/proc/sys/vm/compaction_proactiveness
# Nor are pages that nobody has touched to be made part of large ones: some seconds after each thaw
# the agent's heap grew by 4 MiB of zeros, which are the machine's own from then on (measured).
huge=/sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none
[ -e $huge ] && echo 0 >$huge

# favordynmods makes freezing and moving cheap at the cost of fork and exit (kernel 6.0).
mkdir -p $cgroup
mount -t cgroup2 -o nosuid,nodev,noexec,favordynmods cgroup $cgroup 2>/dev/null ||
    mount -t cgroup2 -o nosuid,nodev,noexec cgroup $cgroup
read -r available <$cgroup/cgroup.controllers
wanted=
for controller in cpu memory pids io cpuset; do
    case " $available " in *" $controller "*) wanted="$wanted +$controller" ;; esac
done
echo "$wanted" >$cgroup/cgroup.subtree_control
mkdir $cgroup/user $cgroup/agent
# User code sees its own part of the tree as the whole.
mount --bind $cgroup/user /sys/fs/cgroup

while :; do
    # "0" is whoever writes: the subshell that becomes the agent.
    (
        echo 0 >$cgroup/agent/cgroup.procs
        exec $tools/sbin/agent
    ) &
    agent=$!
    # A handled signal ends `wait` too.
    while
        wait $agent
        status=$?
        [ -e /proc/$agent ]
    do :; done
    say "the agent ended with status $status; starting it again"
    usleep 200000
done
