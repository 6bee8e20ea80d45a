// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/process.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include <spawn.h>
#include <unistd.h>

namespace tessera {
namespace {

/// Fields of /proc/PID/stat.
struct Status {
  char state = '?';
  std::int64_t parent = 0;
};

std::string file_of(std::int64_t pid, const char* name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/" + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

Status status_of(std::int64_t pid) {
  const std::string text = file_of(pid, "stat");
  Status status;
  const auto name_end = text.rfind(") ");  // the name may contain any character
  if (name_end == std::string::npos || name_end + 4 >= text.size()) return status;
  status.state = text[name_end + 2];
  status.parent = std::atoll(text.c_str() + name_end + 4);
  return status;
}

bool started_with(std::string_view variable, std::int64_t pid) {
  const std::string entries = '\0' + file_of(pid, "environ");
  std::string wanted(1, '\0');
  wanted.append(variable).push_back('=');
  return entries.find(wanted) != std::string::npos;
}

}  // namespace

bool is_running(std::int64_t pid) {
  if (pid <= 0 || (::kill(static_cast<pid_t>(pid), 0) != 0 && errno != EPERM)) return false;
  const char state = status_of(pid).state;
  return state != 'Z' && state != 'X';
}

char process_state(std::int64_t pid) {
  return status_of(pid).state;
}

std::int64_t ancestor_without(std::string_view variable, std::int64_t pid) {
  std::int64_t ancestor = status_of(pid).parent;
  while (ancestor > 0 && started_with(variable, ancestor))
    ancestor = status_of(ancestor).parent;
  return ancestor;
}

pid_t spawn_in_group(const std::vector<std::string>& words,
                     const std::vector<InheritedDescriptor>& descriptors) {
  std::vector<char*> argv;
  for (const std::string& word : words)
    argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const auto& [own, number] : descriptors)
    posix_spawn_file_actions_adddup2(&files, own, number);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  return error == 0 ? child : 0;
}

}  // namespace tessera
