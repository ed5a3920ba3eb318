#!/run/torpor/tools/bin/busybox sh
# Runs the agent with its own Python, C library and loader, whatever the image has or lacks.
# --argv0 is how that Python finds its standard library (it looks beside itself).
tools=/run/torpor/tools
exec $tools/lib/ld.so --inhibit-cache --library-path $tools/lib --argv0 $tools/bin/python3.11 \
    $tools/bin/python3.11 -I -S -B -X utf8 $tools/site
