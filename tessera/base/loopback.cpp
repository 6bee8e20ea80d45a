// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/loopback.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <exception>
#include <system_error>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/quiet_thread.h"
#include "tessera/base/text.h"
#include "tessera/base/utf8.h"

namespace tessera::loopback {
namespace {

constexpr std::size_t kMostHead = 16384;
constexpr std::size_t kMostConnections = 64;
constexpr double kPatience_s = 10;
constexpr std::string_view kUnix = "unix:";

struct Place {
  std::string path;        ///< path of a socket; empty: a port
  std::uint16_t port = 0;  ///< 0: any port
};

/// Returns the place, or what is wrong with the address.
std::pair<Place, std::string> place_of(std::string_view address) {
  Place place;
  if (address.starts_with(kUnix)) {
    place.path = address.substr(kUnix.size());
    if (place.path.empty()) return {place, "the path of the socket is missing"};
    if (place.path.size() >= sizeof(sockaddr_un::sun_path)) {
      return {place,
              fmt::format("the path of the socket is longer than {} bytes",
                          sizeof(sockaddr_un::sun_path) - 1)};
    }
    return {place, ""};
  }
  const std::size_t colon = address.rfind(':');
  const std::string_view host =
      colon == std::string_view::npos ? std::string_view() : address.substr(0, colon);
  const std::string_view port =
      colon == std::string_view::npos ? address : address.substr(colon + 1);
  if (!host.empty() && host != "127.0.0.1" && host != "localhost")
    return {place, "only this host is served, 127.0.0.1 or localhost"};
  const char* const end = port.data() + port.size();
  const auto read = std::from_chars(port.data(), end, place.port);
  if (port.empty() || read.ec != std::errc() || read.ptr != end)
    return {place, "the port is not a number from 0 to 65535"};
  return {place, ""};
}

std::string decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() &&
                        text::hex_digit(text[i + 1]) >= 0 && text::hex_digit(text[i + 2]) >= 0;
    if (escape) {
      out += static_cast<char>(16 * text::hex_digit(text[i + 1]) + text::hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i] == '+' ? ' ' : text[i];
    }
  }
  return out;
}

Request request_of(std::string_view target) {
  Request out;
  const std::size_t mark = target.find('?');
  out.path = decoded(target.substr(0, mark));
  if (mark == std::string_view::npos) return out;
  for (const std::string& pair : text::split(target.substr(mark + 1), '&')) {
    const std::size_t equals = pair.find('=');
    out.query.emplace_back(decoded(std::string_view(pair).substr(0, equals)),
                           equals == std::string::npos
                               ? std::string()
                               : decoded(std::string_view(pair).substr(equals + 1)));
  }
  return out;
}

bool is_this_host(std::string_view host) {
  const std::string_view name = host.substr(0, host.rfind(':'));
  return name == "localhost" || name == "127.0.0.1";
}

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    default:
      return "Error";
  }
}

[[noreturn]] void refuse(const std::string& address, const char* what) {
  throw Error(Error::Kind::Environment,
              fmt::format("cannot serve {}: {}: {}", address, what, std::strerror(errno)),
              "choose another port or path; port 0 takes a free one");
}

sockaddr_un socket_address(const std::string& path) {
  sockaddr_un out{};
  out.sun_family = AF_UNIX;
  std::memcpy(out.sun_path, path.data(), path.size());
  return out;
}

sockaddr_in port_address(std::uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_port = htons(port);
  out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return out;
}

/// Returns a connected socket, or -1.
int connect_to(const Place& place) {
  const bool unix_socket = !place.path.empty();
  const int fd = ::socket(unix_socket ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const sockaddr_un local = socket_address(place.path);
  const sockaddr_in port = port_address(place.port);
  const int failed = unix_socket
                         ? ::connect(fd, reinterpret_cast<const sockaddr*>(&local), sizeof(local))
                         : ::connect(fd, reinterpret_cast<const sockaddr*>(&port), sizeof(port));
  if (failed == 0) return fd;
  ::close(fd);
  return -1;
}

int listen_on(const Place& place, const std::string& address) {
  const bool unix_socket = !place.path.empty();
  const int fd =
      ::socket(unix_socket ? AF_UNIX : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) refuse(address, "socket");
  int failed = 0;
  if (unix_socket) {
    // A socket file that a killed process left can be replaced.
    const int other = connect_to(place);
    if (other >= 0) ::close(other);
    std::error_code ignored;
    if (other < 0 && std::filesystem::is_socket(place.path, ignored)) ::unlink(place.path.c_str());
    const sockaddr_un local = socket_address(place.path);
    failed = ::bind(fd, reinterpret_cast<const sockaddr*>(&local), sizeof(local));
  } else {
    const int on = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    const sockaddr_in port = port_address(place.port);
    failed = ::bind(fd, reinterpret_cast<const sockaddr*>(&port), sizeof(port));
  }
  if (failed != 0 || ::listen(fd, SOMAXCONN) != 0) {
    const int why = errno;
    ::close(fd);
    errno = why;
    refuse(address, "bind");
  }
  return fd;
}

}  // namespace

std::optional<std::string> problem_of(std::string_view address) {
  const auto [place, what] = place_of(address);
  if (what.empty()) return std::nullopt;
  return what;
}

const std::string* Request::find(std::string_view key) const {
  const auto it =
      std::find_if(query.begin(), query.end(), [&](const auto& pair) { return pair.first == key; });
  return it == query.end() ? nullptr : &it->second;
}

std::optional<Request> read_request(std::string_view head, bool any_host) {
  const std::size_t line_end = head.find("\r\n");
  const std::string_view line = head.substr(0, line_end);
  const std::size_t first = line.find(' ');
  const std::size_t second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos || line_end == std::string_view::npos) return std::nullopt;
  const std::string_view method = line.substr(0, first);
  const std::string_view target = line.substr(first + 1, second - first - 1);
  if ((method != "GET" && method != "HEAD") || !target.starts_with('/') ||
      !line.substr(second + 1).starts_with("HTTP/1."))
    return std::nullopt;
  bool ours = any_host;
  for (const std::string& header : text::split(head.substr(line_end + 2), '\n')) {
    const std::size_t colon = header.find(':');
    if (colon == std::string::npos || text::lower(header.substr(0, colon)) != "host") continue;
    ours = ours || is_this_host(text::trim(std::string_view(header).substr(colon + 1)));
  }
  if (!ours) return std::nullopt;
  return request_of(target);
}

struct Server::Connection {
  int fd = -1;
  double until = 0;
  std::string in, out;
  std::size_t sent = 0;
};

Server::Server(const std::string& address, Handler handler) : handler_(std::move(handler)) {
  const auto [place, what] = place_of(address);
  TESSERA_REQUIRE(what.empty(),
                  Config,
                  fmt::format("{} cannot be served: {}", address, what),
                  "write \"127.0.0.1:9464\", or \"unix:/path/of/a.sock\"");
  listener_ = listen_on(place, address);
  if (place.path.empty()) {
    sockaddr_in taken{};
    socklen_t size = sizeof(taken);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&taken), &size);
    address_ = fmt::format("127.0.0.1:{}", ntohs(taken.sin_port));
  } else {
    socket_ = place.path;
    address_ = std::string(kUnix) + place.path;
  }
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) refuse(address_, "pipe");
  thread_ = quiet_thread([this] { serve(); });
}

Server::~Server() {
  const char byte = 0;
  static_cast<void>(!::write(wake_[1], &byte, 1));
  if (thread_.joinable()) thread_.join();
  for (const int fd : {listener_, wake_[0], wake_[1]})
    ::close(fd);
  if (!socket_.empty()) ::unlink(socket_.c_str());
}

void Server::answer(Connection& connection) const {
  Response response;
  const auto request = read_request(connection.in, /*any_host=*/!socket_.empty());
  if (request) {
    try {
      response = handler_(*request);
    } catch (const std::exception& error) {
      response = {500, "text/plain; charset=utf-8", std::string(error.what()) + "\n"};
    }
  } else {
    response = {400, "text/plain; charset=utf-8", "only GET requests of this host are answered\n"};
  }
  connection.out = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: "
      "no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: "
      "no-referrer\r\nConnection: close\r\n\r\n",
      response.status,
      reason(response.status),
      response.type,
      response.body.size());
  if (!connection.in.starts_with("HEAD")) connection.out += response.body;
}

/// Reads or writes as much as possible without waiting; returns false if the connection is
/// finished.
bool Server::advance(Connection& connection) const {
  if (connection.out.empty()) {
    char buffer[4096];
    const ssize_t got = ::recv(connection.fd, buffer, sizeof(buffer), 0);
    if (got == 0) return false;
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    connection.in.append(buffer, static_cast<std::size_t>(got));
    if (connection.in.find("\r\n\r\n") == std::string::npos)
      return connection.in.size() < kMostHead;
    answer(connection);
  }
  const ssize_t put = ::send(connection.fd,
                             connection.out.data() + connection.sent,
                             connection.out.size() - connection.sent,
                             MSG_NOSIGNAL);
  if (put < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<std::size_t>(put);
  return connection.sent < connection.out.size();
}

void Server::serve() {
  std::vector<Connection> connections;
  std::vector<pollfd> polled;
  while (true) {
    polled.assign({{wake_[0], POLLIN, 0}, {listener_, POLLIN, 0}});
    for (const Connection& one : connections)
      polled.push_back({one.fd, static_cast<short>(one.out.empty() ? POLLIN : POLLOUT), 0});
    if (::poll(polled.data(), polled.size(), connections.empty() ? -1 : 1000) < 0 && errno != EINTR)
      break;
    if (polled[0].revents != 0) break;
    const double now = now_s();
    for (std::size_t i = connections.size(); i-- > 0;) {
      const bool ready = polled[i + 2].revents != 0;
      if ((!ready || advance(connections[i])) && now < connections[i].until) continue;
      ::close(connections[i].fd);
      connections.erase(connections.begin() + static_cast<std::ptrdiff_t>(i));
    }
    if (polled[1].revents == 0) continue;
    const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) continue;
    if (connections.size() >= kMostConnections) {
      ::close(fd);
    } else {
      connections.push_back({.fd = fd, .until = now + kPatience_s});
    }
  }
  for (const Connection& one : connections)
    ::close(one.fd);
}

std::string get(const std::string& address, const std::string& target) {
  const auto [place, what] = place_of(address);
  TESSERA_REQUIRE(what.empty(), Config, fmt::format("{}: {}", address, what), "");
  const int fd = connect_to(place);
  TESSERA_REQUIRE(
      fd >= 0, Environment, fmt::format("nobody serves {}: {}", address, std::strerror(errno)), "");
  const timeval patience{.tv_sec = static_cast<time_t>(kPatience_s), .tv_usec = 0};
  ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const std::string head =
      fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", target);
  std::string out;
  ssize_t got = ::send(fd, head.data(), head.size(), MSG_NOSIGNAL);
  char buffer[65536];
  while (got > 0) {
    got = ::recv(fd, buffer, sizeof(buffer), 0);
    if (got > 0) out.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(fd);
  TESSERA_REQUIRE(got == 0, Environment, fmt::format("{} did not answer: {}", address, target), "");
  return out;
}

}  // namespace tessera::loopback
