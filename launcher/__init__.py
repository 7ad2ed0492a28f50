"""What must hold for every sandbox, and which module sees to it?

The fork server of sandboxd: standard library, pyseccomp and python-prctl only; it imports nothing
of ``sandboxd``. The invariants, each with its one place of enforcement:

I1  No step of building or locking down is skipped; a failed one executes nothing.   init
I2  A plan above the ceiling makes nothing.                                          ceiling
I3  No capability survives, in any of the five sets (capabilities(7)).               privileges
I4  No descriptor above 2 crosses execve(2), directories least of all.               lockdown
I5  What is executed is the file that was approved: device, inode, type.             commands
I6  What is shown of the host was opened by descriptor and has the identity granted. trees
I7  Nothing is ever created on the host to build a view.                             mounts
I8  Every mount is nosuid; what is writable is noexec and was granted.               view
I9  no_new_privs, Landlock and the filter are in force, as the kernel itself says.   lockdown
I10 The end of init is the end of every process inside; of the launcher, of all.     nursery
I11 Started by root, no sandbox runs as host uid 0.                                  identity
I12 No further namespace can be made inside.                                         view
"""
