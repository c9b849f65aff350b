// Ends every process that came of this one. Not: starting any (child.h).
#pragma once

#include <sys/types.h>

namespace qkv::cli {

/// From now on a process whose parent ends becomes a child of this one, also one with a session of its own.
void adopt_orphans();

/// Kills and reaps all descendants until none is left; `but` and what came of it is left alone.
void kill_descendants(pid_t but = 0);

/// Children of this process begin a PID namespace: the first is its process 1, with whose end the kernel ends all the
/// others, and none of them can reach a process outside. False where the system does not allow it (a container, some
/// distributions).
bool begin_namespace();

}  // namespace qkv::cli
