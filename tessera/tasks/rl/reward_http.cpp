// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/reward_http.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

constexpr std::string_view kScheme = "http://";
/// A longer response is not a valid answer.
constexpr std::size_t kLongestResponse = std::size_t{4} << 20;

struct Url {
  std::string host, port = "80", path = "/";
};

Url parts_of(const std::string& url) {
  Url out;
  const std::string_view rest = std::string_view(url).substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  const std::string_view place = rest.substr(0, slash);
  if (slash != std::string_view::npos) out.path = rest.substr(slash);
  const std::size_t colon = place.rfind(':');
  out.host = place.substr(0, colon);
  if (colon != std::string_view::npos) out.port = place.substr(colon + 1);
  return out;
}

/// The addresses of the endpoint's host.
class Addresses {
 public:
  explicit Addresses(const Url& url) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    const int error = ::getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &first_);
    TESSERA_REQUIRE(
        error == 0,
        Environment,
        fmt::format("the reward's endpoint {} has no address: {}", url.host, ::gai_strerror(error)),
        "check the host in the reward's \"url\"");
  }
  ~Addresses() { ::freeaddrinfo(first_); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  [[nodiscard]] const addrinfo& first() const { return *first_; }

 private:
  addrinfo* first_ = nullptr;
};

/// One question on its way.
class Exchange {
 public:
  Exchange(std::size_t number, const addrinfo& to, std::string request, double timeout)
      : number(number), deadline_(now_s() + timeout), request_(std::move(request)) {
    end_ = ::socket(to.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (end_ < 0) {
      problem = std::strerror(errno);
    } else if (::connect(end_, to.ai_addr, to.ai_addrlen) != 0 && errno != EINPROGRESS) {
      problem = std::strerror(errno);
    }
  }
  ~Exchange() {
    if (end_ >= 0) ::close(end_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  [[nodiscard]] pollfd waits_for() const {
    return {end_, static_cast<short>(sent_ < request_.size() ? POLLOUT : POLLIN), 0};
  }
  /// Sends and receives what is possible; true if the exchange has ended, well or with a problem.
  bool advance(bool ready) {
    if (!problem.empty()) return true;
    if (now_s() >= deadline_) problem = "gave no answer in time";
    if (!ready || !problem.empty()) return !problem.empty();
    if (sent_ < request_.size()) {
      const ssize_t sent =
          ::send(end_, request_.data() + sent_, request_.size() - sent_, MSG_NOSIGNAL);
      if (sent > 0) sent_ += static_cast<std::size_t>(sent);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) problem = std::strerror(errno);
      return !problem.empty();
    }
    std::array<char, 16384> buffer{};
    const ssize_t got = ::recv(end_, buffer.data(), buffer.size(), 0);
    if (got > 0) received.append(buffer.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EAGAIN && errno != EINTR) problem = std::strerror(errno);
    if (received.size() > kLongestResponse) problem = "answered without an end";
    return got == 0 || !problem.empty();
  }

  const std::size_t number;  ///< of the completion
  std::string received, problem;

 private:
  double deadline_;
  std::string request_;
  std::size_t sent_ = 0;
  int end_ = -1;
};

/// The first number in a text.
std::optional<double> first_number(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    double value = 0;
    const auto read = std::from_chars(text.data() + i, text.data() + text.size(), value);
    const bool digit = text[i] == '-' || (text[i] >= '0' && text[i] <= '9');
    if (digit && read.ec == std::errc()) return value;
  }
  return std::nullopt;
}

/// The text that a chat completion has, or nothing.
std::optional<std::string> content_of(const std::string& body) {
  json::Value answer;
  try {
    answer = json::parse_strict(body, "the endpoint's answer");
  } catch (const Error&) {
    return std::nullopt;
  }
  const json::Value* const choices = answer.is_object() ? answer.find("choices") : nullptr;
  if (choices == nullptr || !choices->is_array() || choices->items().empty()) return std::nullopt;
  const json::Value& choice = choices->items().front();
  const json::Value* const message = choice.is_object() ? choice.find("message") : nullptr;
  const json::Value* const content =
      message != nullptr && message->is_object() ? message->find("content") : nullptr;
  if (content == nullptr || !content->is_string()) return std::nullopt;
  return content->as_string();
}

std::string decoded_chunks(std::string_view rest, std::string& problem) {
  std::string out;
  while (true) {
    const std::size_t end = rest.find("\r\n");
    std::size_t size = 0;
    const char* const last = rest.data() + std::min(end, rest.size());
    const auto read = std::from_chars(rest.data(), last, size, 16);  // an extension may follow
    if (end == std::string_view::npos || read.ec != std::errc() || size > rest.size() - end - 2) {
      problem = "sent a response that is cut off";
      return {};
    }
    if (size == 0) return out;
    out += rest.substr(end + 2, size);
    rest.remove_prefix(std::min(rest.size(), end + 2 + size + 2));
  }
}

}  // namespace

std::string url_problem(const std::string& url) {
  if (url.starts_with("https://")) return "there is no TLS";
  if (!url.starts_with(kScheme)) return "it does not begin with http://";
  const Url parts = parts_of(url);
  if (parts.host.empty()) return "it has no host";
  const bool printable = std::ranges::all_of(url, [](char c) { return c > ' ' && c < 0x7f; });
  return printable ? "" : "it has characters that a URL cannot have";
}

HttpBody read_http_response(const std::string& text) {
  HttpBody out;
  const std::size_t end = text.find("\r\n\r\n");
  const bool begins = text.starts_with("HTTP/1.") && text.size() > 12;
  if (!begins || end == std::string::npos ||
      std::from_chars(text.data() + 9, text.data() + 12, out.status).ec != std::errc()) {
    out.problem = "sent no HTTP response";
    return out;
  }
  const std::string head = text::lower(text.substr(0, end + 2));
  const std::string_view rest = std::string_view(text).substr(end + 4);
  if (head.find("\r\ntransfer-encoding: chunked\r\n") != std::string::npos) {
    out.body = decoded_chunks(rest, out.problem);
    return out;
  }
  constexpr std::string_view kLength = "\r\ncontent-length:";
  out.body = rest;
  if (const std::size_t at = head.find(kLength); at != std::string::npos) {
    const std::size_t from = head.find_first_not_of(' ', at + kLength.size());
    std::size_t size = 0;
    std::from_chars(head.data() + from, head.data() + head.size(), size);
    if (size > rest.size()) out.problem = "sent a response that is cut off";
    out.body = rest.substr(0, size);
  }
  return out;
}

RewardHttp::RewardHttp(HttpRewardOptions options) : options_(std::move(options)) {}

std::string RewardHttp::question(const Answer& answer) const {
  const auto value_of = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "prompt") return std::string(answer.prompt);
    if (name == "completion") return std::string(answer.text);
    const json::Value* const field = answer.record.is_object() ? answer.record.find(name) : nullptr;
    if (field == nullptr) return std::nullopt;
    return field->is_string() ? field->as_string() : field->dump();
  };
  const std::string& form = options_.question;
  std::string filled;
  for (std::size_t at = 0; at < form.size();) {
    const std::size_t close = form[at] == '{' ? form.find('}', at) : std::string::npos;
    const auto value = close != std::string::npos ? value_of(form.substr(at + 1, close - at - 1))
                                                  : std::optional<std::string>();
    filled += value ? *value : std::string(1, form[at]);
    at = value ? close + 1 : at + 1;
  }
  json::Value messages = json::Value::array({});
  const auto add = [&](const char* role, const std::string& text) {
    messages.items().push_back(
        json::Value::object({{"role", json::Value::string(role)},
                             {"content", json::Value::string(text::replace_invalid_utf8(text))}}));
  };
  if (options_.system) add("system", *options_.system);
  add("user", filled);
  return json::Value::object({{"model", json::Value::string(options_.model)},
                              {"messages", messages},
                              {"temperature", json::Value::integer(0)},
                              {"max_tokens", json::Value::integer(options_.max_tokens)}})
      .dump();
}

std::vector<double> RewardHttp::of(std::span<const Answer> answers,
                                   const std::function<void()>& poll) const {
  const Url url = parts_of(options_.url);
  const Addresses addresses(url);
  std::vector<double> out(answers.size(), 0.0);
  std::vector<std::int64_t> failures(answers.size(), 0);
  std::vector<std::size_t> waiting;
  for (std::size_t i = answers.size(); i-- > 0;)
    waiting.push_back(i);
  std::vector<std::unique_ptr<Exchange>> open;

  const auto take = [&](const Exchange& one) {
    const Answer& answer = answers[one.number];
    std::string problem = one.problem;
    HttpBody got;
    if (problem.empty()) {
      got = read_http_response(one.received);
      problem = got.problem;
    }
    if (problem.empty() && got.status != 200)
      problem = fmt::format("answered with status {}", got.status);
    Error::Kind kind = Error::Kind::Environment;
    if (problem.empty()) {
      const std::optional<std::string> content = content_of(got.body);
      const std::optional<double> number =
          content ? first_number(*content) : std::optional<double>();
      if (number) {
        out[one.number] = *number;
        return;
      }
      kind = Error::Kind::Data;
      problem = content ? fmt::format("answered without a number: {}", content->substr(0, 100))
                        : "sent no chat completion";
    }
    const std::string what = fmt::format("the reward's endpoint {} {} about the completion of {}",
                                         options_.url,
                                         text::replace_invalid_utf8(problem),
                                         answer.place);
    if (++failures[one.number] > options_.retries) {
      throw Error(kind,
                  fmt::format("{}, {} times", what, failures[one.number]),
                  kind == Error::Kind::Data
                      ? "ask in \"question\" for a number alone, or raise \"max_tokens\""
                      : "start the server, or raise the reward's \"timeout\" or \"retries\"");
    }
    log::warn(what + "; it is asked again");
    waiting.push_back(one.number);
  };

  while (!waiting.empty() || !open.empty()) {
    while (!waiting.empty() && std::ssize(open) < options_.at_once) {
      const std::size_t i = waiting.back();
      waiting.pop_back();
      const std::string body = question(answers[i]);
      open.push_back(std::make_unique<Exchange>(
          i,
          addresses.first(),
          fmt::format("POST {} HTTP/1.1\r\nHost: {}:{}\r\nContent-Type: application/json\r\n"
                      "Content-Length: {}\r\nConnection: close\r\n\r\n{}",
                      url.path,
                      url.host,
                      url.port,
                      body.size(),
                      body),
          options_.timeout));
    }
    std::vector<pollfd> ends;
    for (const auto& one : open)
      ends.push_back(one->waits_for());
    if (poll) poll();
    if (::poll(ends.data(), ends.size(), 200) < 0 && errno != EINTR)
      throw Error(Error::Kind::Environment, std::strerror(errno), "try again");
    std::vector<std::unique_ptr<Exchange>> left;
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i]->advance(ends[i].revents != 0)) {
        take(*open[i]);
      } else {
        left.push_back(std::move(open[i]));
      }
    }
    open = std::move(left);
  }
  return out;
}

}  // namespace tessera::tasks
