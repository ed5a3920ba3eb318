#!/bin/busybox sh
# /init of the initramfs: load the drivers, find the two disks, hand over to the tools disk.
# busybox is built to prefer its own applets, so no PATH and no links are needed once /proc is
# there (it starts applets by /proc/self/exe).

say() { echo "torpor: $*" >/dev/console; }

fail() {
    say "$*"
    sleep 1 # a panic does not wait until the serial port has sent it
    # PID 1 that ends is a kernel panic, and that is how the host learns that the boot failed.
    exit 1
}

/bin/busybox mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mount -t devtmpfs -o nosuid,mode=755 dev /dev

while read -r module; do
    insmod "$module" || fail "cannot load $module"
done </modules/order

# Disks are told apart by their virtio serial: the kernel's vda and vdb follow the slots.
disk_of() {
    for serial_file in /sys/block/vd*/serial; do
        serial=
        [ -e "$serial_file" ] && read -r serial <"$serial_file"
        if [ "$serial" = "$1" ]; then
            disk=${serial_file#/sys/block/}
            disk=/dev/${disk%/serial}
            [ -b "$disk" ] && return 0
        fi
    done
    return 1
}

wait_for_disk() {
    tries=0
    until disk_of "$1"; do
        tries=$((tries + 1))
        [ $tries -gt 200 ] && fail "no disk with the serial $1 after 10 s; the machine was \
started without it, or with a driver that this initramfs lacks"
        usleep 50000
    done
}

wait_for_disk torpor-root
root_disk=$disk
wait_for_disk torpor-tools
tools_disk=$disk

mount -t ext4 -o rw "$root_disk" /root || fail "cannot mount the root disk $root_disk as ext4"

# An image from elsewhere may lack any of these.
for name in proc sys dev run tmp; do
    [ -d "/root/$name" ] || mkdir "/root/$name" || fail "the root disk has no /$name"
done
[ -k /root/tmp ] || chmod 1777 /root/tmp

mount -t tmpfs -o nosuid,nodev,mode=755 run /root/run
mkdir -p /root/run/torpor/tools
mount -t ext4 -o ro "$tools_disk" /root/run/torpor/tools ||
    fail "cannot mount the tools disk $tools_disk as ext4"

mount --move /sys /root/sys
mount --move /dev /root/dev
mount --move /proc /root/proc
# Without /proc the shell no longer finds its applets.
exec /bin/busybox switch_root /root /run/torpor/tools/bin/busybox sh /run/torpor/tools/sbin/init
