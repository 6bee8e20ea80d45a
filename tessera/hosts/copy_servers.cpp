// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/copy_servers.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/process.h"
#include "tessera/base/text.h"
#include "tessera/hosts/ssh.h"
#include "tessera/launch/rendezvous.h"

namespace tessera::hosts {
namespace {

constexpr double kStartS = 20.0, kAnswerS = 2.0;

/// Two connected sockets; unlike with a pipe, writing to a process that has ended raises no signal.
std::optional<std::pair<launch::Fd, launch::Fd>> make_channel() {
  std::array<int, 2> ends{-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return std::nullopt;
  return std::pair(launch::Fd(ends[0]), launch::Fd(ends[1]));
}

void write_if_possible(int fd, const std::string& text) {
  static_cast<void>(!send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
}

}  // namespace

/// A server of this host, or the ssh that leads to one.
struct CopyServers::Process {
  CopyPlace place;  // port 0: it has not said where it listens
  pid_t pid = 0;
  launch::Fd input, output;
  std::string said;

  Process() = default;
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// Ends the process. If it is the ssh to another host, the server there sees the end of its
  /// standard input, and ends too.
  ~Process() {
    if (pid == 0) return;
    kill(-pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
};

CopyServers::CopyServers(const RemoteOptions& options)
    : options_(options), coordinator_(hosts::master_address(options)) {
  TESSERA_ASSERT(options.secret.has_value());
}

CopyServers::~CopyServers() = default;

void CopyServers::start(const HostPool& pool) {
  const std::map<std::string, int> before = indices();
  for (const HostSlots& host : pool) {
    if (!before.contains(host.name)) start_one(host.name);
  }
  await_all(now_s() + kStartS);
  std::erase_if(processes_, [this](const auto& process) {
    if (process->place.port != 0) return false;
    options_.notice(fmt::format(
        "host {} keeps no copies (checkpoint.peer_copies): its copy server did not start",
        process->place.host));
    return true;
  });
  index_ = indices();
  all_of_ = static_cast<std::size_t>(std::ranges::count_if(
      pool, [this](const HostSlots& host) { return index_.contains(host.name); }));
}

void CopyServers::start_one(const std::string& host) {
  auto input = make_channel(), output = make_channel();
  auto process = std::make_unique<Process>();
  process->place.host = host;
  if (input && output) {
    const std::vector<std::string> environment = passed_environment();
    std::vector<std::string> words = {"env"};
    words.insert(words.end(), environment.begin(), environment.end());
    words.insert(words.end(), {options_.program, kCopyServerCommand});
    if (!is_this_host(host))
      words = ssh_command(options_,
                          host,
                          std::filesystem::current_path().string(),
                          environment,
                          kCopyServerCommand);
    process->pid = spawn_in_group(
        words, {{input->first.get(), STDIN_FILENO}, {output->second.get(), STDOUT_FILENO}});
    process->input = std::move(input->second);
    process->output = std::move(output->first);
    write_if_possible(process->input.get(), copy_server_request(*options_.secret, coordinator_));
  }
  processes_.push_back(std::move(process));
}

/// Reads the lines in which the servers say where they listen.
void CopyServers::await_all(double deadline) {
  for (;;) {
    std::vector<pollfd> waited;
    std::vector<Process*> silent;
    for (const auto& process : processes_) {
      if (process->place.port != 0 || process->output.get() < 0 || process->pid == 0) continue;
      waited.push_back({process->output.get(), POLLIN, 0});
      silent.push_back(process.get());
    }
    if (waited.empty() || !launch::wait_for_events(waited, deadline)) return;
    for (std::size_t i = 0; i < waited.size(); ++i) {
      if (waited[i].revents == 0) continue;
      std::array<char, 256> part;
      const ssize_t got = read(silent[i]->output.get(), part.data(), part.size());
      if (got <= 0) {
        silent[i]->output = launch::Fd();
        continue;
      }
      silent[i]->said.append(part.data(), static_cast<std::size_t>(got));
      const std::vector<std::string> lines = text::split(silent[i]->said, '\n');
      if (lines.size() < 2) continue;
      const std::vector<std::string> words = text::split(lines.front(), ' ');
      if (words.size() != 2) continue;
      silent[i]->place.address = words[0];
      silent[i]->place.port = std::atoi(words[1].c_str());
    }
  }
}

void CopyServers::forget(const std::vector<std::string>& hosts) {
  std::erase_if(processes_, [&](const auto& process) {
    return std::ranges::find(hosts, process->place.host) != hosts.end();
  });
}

void CopyServers::show_life() {
  for (const auto& process : processes_)
    write_if_possible(process->input.get(), "\n");
}

FoundCopies CopyServers::find() {
  std::vector<CopyListing> all;
  std::vector<std::string> silent;
  for (const auto& process : processes_) {
    try {
      CopyClient client(process->place, *options_.secret, kAnswerS);
      for (CopyListing& one : client.list())
        all.push_back(std::move(one));
    } catch (const Error&) {
      silent.push_back(process->place.host);
    }
  }
  forget(silent);
  return find_copies(all);
}

std::map<std::string, int> CopyServers::indices() const {
  std::map<std::string, int> out;
  for (std::size_t i = 0; i < processes_.size(); ++i)
    out.emplace(processes_[i]->place.host, static_cast<int>(i));
  return out;
}

CopyPart CopyServers::part_of(const HostPool& pool, int host, const CopySet& from) const {
  CopyPart part;
  part.from = from;
  // Without a set to begin with, a host asks only its own server and that of its neighbour.
  const bool all_places = from.exists();
  const auto add = [&](int index) {
    if (all_places) return index;
    const CopyPlace& place = processes_[static_cast<std::size_t>(index)]->place;
    part.places.push_back(place);
    return static_cast<int>(part.places.size()) - 1;
  };
  if (all_places) {
    for (const auto& process : processes_)
      part.places.push_back(process->place);
  }
  if (all_of_ != pool.size()) return part;
  const auto index_of = [&](std::size_t at) {
    const auto found = index_.find(pool[at].name);
    return found == index_.end() ? -1 : found->second;
  };
  const auto at = static_cast<std::size_t>(host);
  const int own = index_of(at), next = index_of((at + 1) % pool.size());
  if (own < 0 || next < 0) return part;
  part.own = add(own);
  part.neighbour = next == own ? part.own : add(next);
  return part;
}

}  // namespace tessera::hosts
