// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/http_client.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include <dlfcn.h>
#include <fmt/format.h>

#include "tessera/base/error.h"

#define CURL_DISABLE_TYPECHECK  // the functions are called through pointers
#include <curl/curl.h>

namespace tessera::tasks {
namespace {

constexpr const char* kLibrary = "libcurl.so.4";
constexpr const char* kInstall = "install libcurl: apt-get install libcurl4";

/// The functions of libcurl that are used.
struct Curl {
  decltype(&curl_global_init) global_init = nullptr;
  decltype(&curl_easy_init) easy_init = nullptr;
  decltype(&curl_easy_setopt) easy_setopt = nullptr;
  decltype(&curl_easy_getinfo) easy_getinfo = nullptr;
  decltype(&curl_easy_cleanup) easy_cleanup = nullptr;
  decltype(&curl_easy_strerror) easy_strerror = nullptr;
  decltype(&curl_slist_append) slist_append = nullptr;
  decltype(&curl_slist_free_all) slist_free_all = nullptr;
  decltype(&curl_multi_init) multi_init = nullptr;
  decltype(&curl_multi_add_handle) multi_add_handle = nullptr;
  decltype(&curl_multi_remove_handle) multi_remove_handle = nullptr;
  decltype(&curl_multi_perform) multi_perform = nullptr;
  decltype(&curl_multi_poll) multi_poll = nullptr;
  decltype(&curl_multi_info_read) multi_info_read = nullptr;
  decltype(&curl_multi_cleanup) multi_cleanup = nullptr;
  std::string obstacle;

  Curl() {
    void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      obstacle = ::dlerror();
      return;
    }
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      if (function == nullptr) obstacle = fmt::format("{} has no {}", kLibrary, name);
    };
    find(global_init, "curl_global_init");
    find(easy_init, "curl_easy_init");
    find(easy_setopt, "curl_easy_setopt");
    find(easy_getinfo, "curl_easy_getinfo");
    find(easy_cleanup, "curl_easy_cleanup");
    find(easy_strerror, "curl_easy_strerror");
    find(slist_append, "curl_slist_append");
    find(slist_free_all, "curl_slist_free_all");
    find(multi_init, "curl_multi_init");
    find(multi_add_handle, "curl_multi_add_handle");
    find(multi_remove_handle, "curl_multi_remove_handle");
    find(multi_perform, "curl_multi_perform");
    find(multi_poll, "curl_multi_poll");
    find(multi_info_read, "curl_multi_info_read");
    find(multi_cleanup, "curl_multi_cleanup");
  }
};

const Curl& curl() {
  static const Curl library;
  return library;
}

}  // namespace

std::string http_obstacle() {
  return curl().obstacle;
}

class HttpClient::Implementation {
 public:
  explicit Implementation(Options options) : options_(std::move(options)) {
    TESSERA_REQUIRE(curl().obstacle.empty(), Environment, curl().obstacle, kInstall);
    // In the process that sends: a library that was initialized before a fork may not be used.
    static const CURLcode initialized = curl().global_init(CURL_GLOBAL_DEFAULT);
    multi_ = curl().multi_init();
    TESSERA_REQUIRE(initialized == CURLE_OK && multi_ != nullptr,
                    Environment,
                    "libcurl cannot be initialized",
                    "check the installation of libcurl");
    headers_ = curl().slist_append(headers_, "Content-Type: application/json");
    headers_ = curl().slist_append(headers_, "Expect:");  // the server need not confirm the body
    if (!options_.token.empty())
      headers_ = curl().slist_append(headers_, ("Authorization: Bearer " + options_.token).c_str());
  }
  ~Implementation() {
    for (const auto& request : open_)
      close(*request);
    curl().multi_cleanup(multi_);
    curl().slist_free_all(headers_);
  }
  Implementation(const Implementation&) = delete;
  Implementation& operator=(const Implementation&) = delete;

  void post(std::size_t number, const std::string& json) {
    auto request = std::make_unique<Request>();
    request->response.number = number;
    request->max_bytes = options_.max_bytes;
    request->handle = curl().easy_init();
    TESSERA_REQUIRE(
        request->handle != nullptr, Memory, "no memory for a request", "send fewer at a time");
    const auto set = [&](CURLoption option, auto value) {
      curl().easy_setopt(request->handle, option, value);
    };
    set(CURLOPT_URL, options_.url.c_str());
    set(CURLOPT_HTTPHEADER, headers_);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(json.size()));
    set(CURLOPT_COPYPOSTFIELDS, json.c_str());
    set(CURLOPT_TIMEOUT_MS, std::max(1L, static_cast<long>(1000 * options_.timeout_s)));
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_WRITEFUNCTION, &Implementation::receive);
    set(CURLOPT_WRITEDATA, static_cast<void*>(request.get()));
    if (!options_.ca_file.empty()) set(CURLOPT_CAINFO, options_.ca_file.c_str());
    curl().multi_add_handle(multi_, request->handle);
    open_.push_back(std::move(request));
  }

  [[nodiscard]] std::size_t num_open() const { return open_.size(); }

  std::vector<Response> wait(double seconds) {
    int running = 0;
    curl().multi_perform(multi_, &running);
    std::vector<Response> out = finished();
    if (!out.empty() || open_.empty()) return out;
    curl().multi_poll(multi_, nullptr, 0, static_cast<int>(1000 * seconds), nullptr);
    curl().multi_perform(multi_, &running);
    return finished();
  }

 private:
  struct Request {
    CURL* handle = nullptr;
    Response response;
    std::size_t max_bytes = 0;
    bool too_long = false;
  };

  static std::size_t receive(const char* data, std::size_t size, std::size_t count, void* to) {
    auto& request = *static_cast<Request*>(to);
    const std::size_t bytes = size * count;
    request.too_long = bytes > request.max_bytes - request.response.body.size();
    if (request.too_long) return 0;  // ends the transfer
    request.response.body.append(data, bytes);
    return bytes;
  }

  void close(Request& request) {
    curl().multi_remove_handle(multi_, request.handle);
    curl().easy_cleanup(request.handle);
  }

  static std::string problem_of(CURLcode code, bool too_long) {
    if (code == CURLE_OK) return "";
    if (too_long) return "sent a response without an end";
    if (code == CURLE_OPERATION_TIMEDOUT) return "gave no answer in time";
    if (code == CURLE_PARTIAL_FILE) return "sent a response that is cut off";
    return fmt::format("could not be asked ({})", curl().easy_strerror(code));
  }

  std::vector<Response> finished() {
    std::vector<Response> out;
    int left = 0;
    while (const CURLMsg* const message = curl().multi_info_read(multi_, &left)) {
      if (message->msg != CURLMSG_DONE) continue;
      const CURLcode code = message->data.result;
      const auto at = std::ranges::find_if(
          open_, [&](const auto& one) { return one->handle == message->easy_handle; });
      TESSERA_ASSERT(at != open_.end());
      Request& request = **at;
      long status = 0;
      curl().easy_getinfo(request.handle, CURLINFO_RESPONSE_CODE, &status);
      request.response.status = static_cast<int>(status);
      request.response.problem = problem_of(code, request.too_long);
      close(request);
      out.push_back(std::move(request.response));
      open_.erase(at);
    }
    return out;
  }

  const Options options_;
  CURLM* multi_ = nullptr;
  curl_slist* headers_ = nullptr;
  std::vector<std::unique_ptr<Request>> open_;
};

HttpClient::HttpClient(Options options)
    : implementation_(std::make_unique<Implementation>(std::move(options))) {}
HttpClient::~HttpClient() = default;

void HttpClient::post(std::size_t number, const std::string& json) {
  implementation_->post(number, json);
}
std::size_t HttpClient::num_open() const {
  return implementation_->num_open();
}
std::vector<HttpClient::Response> HttpClient::wait(double seconds) {
  return implementation_->wait(seconds);
}

}  // namespace tessera::tasks
