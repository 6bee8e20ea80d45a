// SPDX-License-Identifier: Apache-2.0
// Queries about processes of this host, and the start of another program.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

namespace tessera {

/// Returns whether the process runs. A process that has ended but has not been reaped (a zombie)
/// does not run.
bool is_running(std::int64_t pid);

/// Returns the letter by which the kernel names the state of a process: 'T' if a signal has stopped
/// it, 'D' if it waits for a device; '?' if there is no such process.
char process_state(std::int64_t pid);

/// Returns the nearest ancestor of `pid` that was started without `variable` in its environment; 0
/// if there is none. An ancestor whose environment cannot be read counts as started without it.
std::int64_t ancestor_without(std::string_view variable, std::int64_t pid);

/// A descriptor of this process and the number that a started program has for it.
struct InheritedDescriptor {
  int own = -1;
  int number = -1;
};

/// Starts the program `words.front()`, which is searched in PATH, in a process group of its own
/// with no signal blocked. The program inherits `descriptors` and every other descriptor that is
/// not closed on exec. Returns its process id; 0 if it cannot be started. The caller waits for it.
/// Other threads may exist.
pid_t spawn_in_group(const std::vector<std::string>& words,
                     const std::vector<InheritedDescriptor>& descriptors);

}  // namespace tessera
