"""as_user.py USER COMMAND...: runs a command as the user of this number, without any group of root's."""

import os
import sys

user = int(sys.argv[1])
os.setgroups([])
os.setgid(user)
os.setuid(user)
os.chdir("/")
os.execv(sys.argv[2], sys.argv[2:])
