// SPDX-License-Identifier: Apache-2.0
// Sends HTTP and HTTPS requests, several at a time, with libcurl. The library is opened when it is
// first needed, so that only programs that send requests depend on it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace tessera::tasks {

/// Returns why no request can be sent on this host: libcurl cannot be opened; empty if it can.
std::string http_obstacle();

/// Sends POST requests with JSON. Proxies are those of the environment (http_proxy, https_proxy,
/// no_proxy); redirections are not followed. Threads: one at a time.
class HttpClient {
 public:
  struct Options {
    std::string url;      ///< of all requests
    std::string token;    ///< sent as "Authorization: Bearer ..."; empty: none
    std::string ca_file;  ///< certificates of authorities, PEM; empty: those of the system
    double timeout_s = 60.0;
    std::size_t max_bytes = std::size_t{4} << 20;  ///< a longer response is a problem
  };
  struct Response {
    std::size_t number = 0;  ///< that of post()
    int status = 0;
    std::string body;
    std::string problem;  ///< why there is no response; empty if there is one
  };

  /// Throws Error{Environment} if there is an http_obstacle().
  explicit HttpClient(Options options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Begins a request. `number` identifies its response.
  void post(std::size_t number, const std::string& json);
  [[nodiscard]] std::size_t num_open() const;
  /// Waits at most `seconds` and returns the responses that have arrived, and the requests that
  /// failed.
  std::vector<Response> wait(double seconds);

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tessera::tasks
