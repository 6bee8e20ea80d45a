// SPDX-License-Identifier: Apache-2.0
#include "tessera/hosts/host_check.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <fmt/core.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/hosts/secret.h"

namespace tessera::hosts {
namespace {

constexpr int kReachAll = 32;  // hosts up to which each one tries all others
constexpr int kBacklog = 128;
constexpr std::size_t kMarkDigits = 16;

/// An address and a port as the kernel takes them.
struct Resolved {
  sockaddr_storage address{};
  socklen_t length = 0;
  std::string why;  ///< empty if it was found
};

Resolved resolve(const std::string& address, int port) {
  Resolved out;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* list = nullptr;
  if (const int error = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
      error != 0) {
    out.why = gai_strerror(error);
    return out;
  }
  std::memcpy(&out.address, list->ai_addr, list->ai_addrlen);
  out.length = list->ai_addrlen;
  freeaddrinfo(list);
  return out;
}

/// A connection attempt in progress.
struct Attempt {
  launch::Fd fd;
  std::string why;  ///< empty if it succeeded
  bool pending = false;
};

Attempt begin(const HostAddress& target) {
  const Resolved to = resolve(target.address, target.port);
  if (!to.why.empty()) return {launch::Fd(), to.why};
  Attempt attempt{
      launch::Fd(socket(to.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0))};
  if (attempt.fd.get() < 0) return {launch::Fd(), std::strerror(errno)};
  if (connect(attempt.fd.get(), reinterpret_cast<const sockaddr*>(&to.address), to.length) == 0)
    return attempt;
  attempt.pending = errno == EINPROGRESS;
  if (!attempt.pending) attempt.why = std::strerror(errno);
  return attempt;
}

}  // namespace

ProbeListener::ProbeListener(const std::string& address) {
  const Resolved own = resolve(address, 0);
  why_ = own.why;
  if (!why_.empty()) return;
  launch::Fd fd(socket(own.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_storage bound{};
  socklen_t length = sizeof(bound);
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&own.address), own.length) != 0 ||
      listen(fd.get(), kBacklog) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &length) != 0) {
    why_ = std::strerror(errno);
    return;
  }
  port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                            : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  fd_ = std::move(fd);
}

std::vector<std::string> unreachable(const std::vector<HostAddress>& addresses, double timeout_s) {
  std::vector<Attempt> attempts;
  attempts.reserve(addresses.size());
  for (const HostAddress& address : addresses)
    attempts.push_back(begin(address));
  const double deadline = now_s() + timeout_s;
  for (;;) {
    std::vector<pollfd> waited;
    std::vector<Attempt*> who;
    for (Attempt& attempt : attempts) {
      if (!attempt.pending) continue;
      waited.push_back({attempt.fd.get(), POLLOUT, 0});
      who.push_back(&attempt);
    }
    const double left = deadline - now_s();
    if (waited.empty() || left <= 0) break;
    poll(waited.data(), waited.size(), static_cast<int>(left * 1e3) + 1);
    for (std::size_t i = 0; i < waited.size(); ++i) {
      if (waited[i].revents == 0) continue;
      int error = 0;
      socklen_t length = sizeof(error);
      getsockopt(who[i]->fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
      who[i]->pending = false;
      if (error != 0) who[i]->why = std::strerror(error);
    }
  }
  std::vector<std::string> out;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (attempts[i].pending) attempts[i].why = fmt::format("no answer within {} s", timeout_s);
    if (attempts[i].why.empty()) continue;
    out.push_back(
        fmt::format("{} at {}: {}", addresses[i].host, addresses[i].address, attempts[i].why));
  }
  return out;
}

std::string listening_address(const std::string& way_to_head) {
  const char* const wanted = std::getenv("GLOO_SOCKET_IFNAME");
  if (wanted == nullptr || *wanted == '\0') return way_to_head;
  ifaddrs* list = nullptr;
  TESSERA_REQUIRE(getifaddrs(&list) == 0,
                  Environment,
                  fmt::format("cannot list the interfaces: {}", std::strerror(errno)),
                  "unset GLOO_SOCKET_IFNAME");
  std::string found, names;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr) continue;
    const int family = at->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    if (names.find(at->ifa_name) == std::string::npos)
      names += fmt::format("{}{}", names.empty() ? "" : ", ", at->ifa_name);
    if (std::strcmp(at->ifa_name, wanted) != 0 || !found.empty()) continue;
    std::array<char, NI_MAXHOST> text{};
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (getnameinfo(at->ifa_addr, length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) ==
        0)
      found = text.data();
  }
  freeifaddrs(list);
  TESSERA_REQUIRE(
      !found.empty(),
      Config,
      fmt::format("GLOO_SOCKET_IFNAME={}: there is no such interface with an address", wanted),
      fmt::format("name one of {}, or unset the variable", names));
  return found;
}

std::vector<int> hosts_to_reach(int own, int hosts) {
  std::vector<int> out;
  if (hosts <= kReachAll) {
    for (int other = 0; other < hosts; ++other) {
      if (other != own) out.push_back(other);
    }
    return out;
  }
  for (int distance = 1; distance < hosts; distance *= 2)
    out.push_back((own + distance) % hosts);
  return out;
}

FolderMark::FolderMark(const std::string& folder) {
  if (folder.empty()) return;
  const std::string mark = ".host-" + to_hex(random_secret()).substr(0, kMarkDigits);
  const std::string path = (std::filesystem::path(folder) / mark).string();
  const launch::Fd file(open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
  if (file.get() < 0) return;
  path_ = path;
  mark_ = mark;
}

FolderMark::~FolderMark() {
  if (!path_.empty()) unlink(path_.c_str());
}

bool sees_mark(const std::string& folder, const std::string& mark, double patience_s) {
  constexpr int kTickMs = 100;
  // The mark comes from another host, so it is only accepted as a file name, never as a path.
  if (mark.find('/') != std::string::npos) return false;
  const std::filesystem::path path = std::filesystem::path(folder) / mark;
  for (const double deadline = now_s() + patience_s;;) {
    std::error_code unknown;
    if (std::filesystem::exists(path, unknown)) return true;
    if (now_s() >= deadline) return false;
    poll(nullptr, 0, kTickMs);
  }
}

std::string_view network_file_system(std::uint64_t type) {
  // Sources: statfs(2), and the headers of the file systems.
  switch (type) {
    case 0x6969:
      return "NFS";
    case 0x0BD00BD0:
      return "Lustre";
    case 0x47504653:
      return "GPFS";
    case 0x00C36400:
      return "Ceph";
    case 0x19830326:
      return "BeeGFS";
    case 0x20030528:
      return "OrangeFS";
    case 0xFF534D42:
    case 0xFE534D42:
    case 0x517B:
      return "SMB";
    case 0x5346414F:
      return "AFS";
    case 0x01161970:
      return "GFS2";
    case 0x7461636F:
      return "OCFS2";
    default:
      return "";
  }
}

void check_own_folder(const RunFolderCheck& folder) {
  if (!folder.must_be_own) return;
  std::error_code failed;
  std::filesystem::path place = std::filesystem::absolute(folder.path, failed);
  while (!std::filesystem::exists(place, failed) && place.has_relative_path())
    place = place.parent_path();
  struct statfs found {};
  if (::statfs(place.c_str(), &found) != 0) return;
  const std::string_view name = network_file_system(static_cast<std::uint32_t>(found.f_type));
  TESSERA_REQUIRE(
      name.empty(),
      Config,
      fmt::format("the run folder {} is on a network file system ({}), which all hosts share: each "
                  "would save its part of a checkpoint in place of the others'",
                  folder.path,
                  name),
      "set checkpoint.use_node_local_storage to false, or run.dir to a folder on a disk of each "
      "host");
}

}  // namespace tessera::hosts
