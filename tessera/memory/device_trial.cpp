// SPDX-License-Identifier: Apache-2.0
#include "tessera/memory/device_trial.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"

namespace tessera::memory {
namespace {

constexpr char kEnd = '\x1e';  // separates what happened and its fix
constexpr const char* kOtherDevice =
    "tools/gpu_check.sh tries the parts one by one; --device cpu computes on the CPU";

/// Returns what happened and the fix, or an empty text.
std::string outcome_of(const std::vector<Device>& devices) {
  try {
    for (const Device& device : devices) {
      const DeviceEntry& entry = device_entry(device.kind);
      if (entry.try_out == nullptr) continue;
      entry.enter(device);
      entry.try_out(device);
    }
  } catch (const Error& error) {
    return error.what() + std::string(1, kEnd) + error.fix();
  } catch (const std::exception& error) {
    return error.what() + std::string(1, kEnd) + kOtherDevice;
  }
  return "";
}

/// Reads until the end of the pipe; returns false if that takes longer than `limit_s`.
bool read_all(int from, double limit_s, std::string& out) {
  const double deadline = now_s() + limit_s;
  for (std::array<char, 512> part{};;) {
    const int left_ms = std::max(0, static_cast<int>((deadline - now_s()) * 1000.0));
    pollfd wait = {from, POLLIN, 0};
    const int ready = poll(&wait, 1, left_ms);
    if (ready == 0) return false;
    if (ready < 0) continue;  // interrupted by a signal
    const ssize_t count = read(from, part.data(), part.size());
    if (count <= 0) return true;
    out.append(part.data(), static_cast<std::size_t>(count));
  }
}

[[noreturn]] void be_the_child(int to, const std::vector<Device>& devices) {
  const std::string text = outcome_of(devices);
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t count = write(to, text.data() + at, text.size() - at);
    if (count <= 0) break;
    at += static_cast<std::size_t>(count);
  }
  _exit(0);
}

}  // namespace

void try_devices(const std::vector<Device>& devices, double limit_s) {
  if (std::none_of(devices.begin(), devices.end(), [](const Device& device) {
        return device_entry(device.kind).try_out != nullptr;
      }))
    return;
  std::array<int, 2> ends{};
  TESSERA_REQUIRE(pipe(ends.data()) == 0, Environment, "no pipe can be opened", "ulimit -n 1024");
  std::fflush(nullptr);  // else the child could write it once more
  const pid_t child = fork();
  TESSERA_REQUIRE(child >= 0, Environment, "no process can be started", "raise ulimit -u");
  if (child == 0) {
    close(ends[0]);
    be_the_child(ends[1], devices);
  }
  close(ends[1]);
  std::string text;
  const bool in_time = read_all(ends[0], limit_s, text);
  close(ends[0]);
  if (!in_time) kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  TESSERA_REQUIRE(
      in_time,
      Environment,
      fmt::format(
          "the device {} does not answer within {:.0f} seconds", to_text(devices.front()), limit_s),
      "see whether nvidia-smi answers; a driver that hangs needs a restart of the host");
  TESSERA_REQUIRE(!WIFSIGNALED(status),
                  Environment,
                  fmt::format("the libraries of the device {} end the process that loads them "
                              "(signal {})",
                              to_text(devices.front()),
                              WTERMSIG(status)),
                  kOtherDevice);
  const std::size_t end = text.find(kEnd);
  if (!text.empty())
    throw Error(Error::Kind::Environment, text.substr(0, end), text.substr(end + 1));
}

}  // namespace tessera::memory
