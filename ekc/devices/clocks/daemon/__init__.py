"""The governor's daemon, `ekc govern --daemon`: it sets limits of GPUs for users who may not.

The daemon runs as root, or with CAP_SYS_ADMIN, and listens on a UNIX socket. `ekc govern` of a user connects
to it (`client`), in place of NVML.

- **Who.** The kernel reports the caller's process, user and groups (SO_PEERCRED, SO_PEERGROUPS). A file of
  the administrator says which users and groups may set which GPUs, and how low (`allow_list`). Root is listed
  like any other user: root in a container is root for the kernel too. Prolog and epilog of a batch system
  write and delete a file per job, which says which GPUs its user has (`allow_list`). Permission is looked up
  at each request, so a lease ends with its job, and when the administrator changes the list.
- **A connection is the lease.** The daemon leases the GPUs with a `LeaseKeeper` of its own: the lease files
  are in its folder before anything is set, and a guard process watches the daemon. When the connection
  closes, or no message comes for `SILENCE_TIMEOUT_S`, the settings go back. So nothing is left set where a
  batch system stops the client and all its processes. A client that continues finds its connection closed,
  and asks for lease and settings again. It keeps no lease file and no guard.
- **One owner per GPU.** A refusal names the process and user who hold it. A GPU on which another user
  computes is not leased, and a lease ends within `FOREIGN_CHECK_S` when another user's process appears: a
  caller never slows down another user's job.
- **Never looser than found.** A setting is at most what was in force before the lease, at least what the
  allow-list permits, and a value that the board offers.
- **Bounds.** A request has at most `MAX_REQUEST_BYTES`; a user has at most `MAX_USER_CONNECTIONS`. Each
  connection has a thread, so a slow or hung one delays no other.
- **The daemon's own end.** SIGTERM puts everything back. After kill -9 its guards do. Where these are killed
  too, the next daemon restores at its start what the lease files say. systemd hears READY, WATCHDOG and
  STOPPING (`server`).

Messages are JSON objects, one a line (`messages`):

| request | reply |
|---|---|
| `{"do": "check", "gpus": [UUID]}` | whether a lease would be given |
| `{"do": "lease", "gpus": [UUID, ..]}` | for each GPU the settings before, and the lowest ones |
| `{"do": "set", "gpu": UUID, "settings": {"sm_mhz": 1200, ..}}` | when it is done |
| `{"do": "beat"}` | sign of life |
| `{"do": "end"}` | when the settings are back |

A reply is `{"ok": true, ..}` or `{"refused": reason}`; `{"ended": reason}` comes before the daemon closes.
"""
