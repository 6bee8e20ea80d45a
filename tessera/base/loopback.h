// SPDX-License-Identifier: Apache-2.0
// A small HTTP server that only this host can reach: on a loopback port, or on a socket in the file
// system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace tessera::loopback {

/// Returns why `address` cannot be served; nothing if it can. Valid addresses: "127.0.0.1:9464",
/// "localhost:9464", ":9464", "9464" and "unix:/path".
std::optional<std::string> problem_of(std::string_view address);

/// A GET request, percent-decoded.
struct Request {
  std::string path;  ///< "/metrics"
  std::vector<std::pair<std::string, std::string>> query;
  /// Returns the value of the first key of this name, or nullptr.
  [[nodiscard]] const std::string* find(std::string_view key) const;
};
struct Response {
  int status = 200;
  std::string type = "text/plain; charset=utf-8";
  std::string body;
};
using Handler = std::function<Response(const Request&)>;

/// Reads the first line and the headers of a request. Returns nothing unless it is a GET or HEAD
/// request for this host: a page of another site, whose name may resolve to 127.0.0.1, must not
/// read them.
std::optional<Request> read_request(std::string_view head, bool any_host);

/// Answers GET requests on its own thread, one after another, until it is destroyed. Limits: 64
/// connections, 16 KiB of headers, ten seconds for a request and its answer. `handler` runs on that
/// thread; an exception becomes status 500.
class Server {
 public:
  /// Throws Error{Environment} if the address cannot be bound, and Error{Config} if it is invalid.
  /// A socket file that no process serves any more is replaced.
  Server(const std::string& address, Handler handler);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  /// Returns the address with the chosen port.
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  struct Connection;
  void serve();
  void answer(Connection& connection) const;
  bool advance(Connection& connection) const;

  Handler handler_;
  std::string address_;
  std::filesystem::path socket_;  ///< path of the socket; empty: a port
  int listener_ = -1;
  int wake_[2] = {-1, -1};
  std::thread thread_;
};

/// Sends one GET request and returns the whole answer with its headers: for tests and for `tessera
/// watch`. Throws Error{Environment} if there is no answer within ten seconds.
std::string get(const std::string& address, const std::string& target);

}  // namespace tessera::loopback
