// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/reward_http.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/tasks/rl/http_client.h"

namespace tessera::tasks {
namespace {

/// The first finite number in a text. Digits of a number that is too large for a double are
/// skipped.
std::optional<double> first_number(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '-' && (text[i] < '0' || text[i] > '9')) continue;
    double value = 0;
    const auto read = std::from_chars(text.data() + i, text.data() + text.size(), value);
    if (read.ec == std::errc::invalid_argument) continue;
    if (read.ec == std::errc() && std::isfinite(value)) return value;
    i = static_cast<std::size_t>(read.ptr - text.data()) - 1;
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

}  // namespace

std::string url_problem(const std::string& url) {
  std::string_view rest = url;
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (url.starts_with(scheme)) rest.remove_prefix(scheme.size());
  }
  if (rest.size() == url.size()) return "it begins with neither http:// nor https://";
  if (rest.empty() || rest.front() == '/' || rest.front() == ':') return "it has no host";
  const bool printable = std::ranges::all_of(url, [](char c) { return c > ' ' && c < 0x7f; });
  return printable ? "" : "it has characters that a URL cannot have";
}

void check_endpoint(const HttpRewardOptions& options) {
  const std::string obstacle = http_obstacle();
  TESSERA_REQUIRE(obstacle.empty(),
                  Environment,
                  fmt::format("the reward's endpoint {} is asked with libcurl, which cannot be "
                              "opened: {}",
                              options.url,
                              obstacle),
                  "install it: apt-get install libcurl4");
  const std::string& token = options.token_variable;
  TESSERA_REQUIRE(
      token.empty() || std::getenv(token.c_str()) != nullptr,
      Environment,
      fmt::format("the reward's token_variable {} is not set in the environment", token),
      fmt::format("export {}=..., on several hosts on each of them", token));
  TESSERA_REQUIRE(options.ca_file.empty() || std::filesystem::is_regular_file(options.ca_file),
                  Environment,
                  fmt::format("the reward's ca_file {} is not a file", options.ca_file),
                  "name a PEM file with certificates, or remove it");
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
  const char* const token =
      options_.token_variable.empty() ? nullptr : std::getenv(options_.token_variable.c_str());
  HttpClient client({.url = options_.url,
                     .token = token == nullptr ? "" : token,
                     .ca_file = options_.ca_file,
                     .timeout_s = options_.timeout});
  std::vector<double> out(answers.size(), 0.0);
  std::vector<std::int64_t> failures(answers.size(), 0);
  std::vector<std::size_t> waiting;
  for (std::size_t i = answers.size(); i-- > 0;)
    waiting.push_back(i);

  const auto take = [&](const HttpClient::Response& got) {
    const Answer& answer = answers[got.number];
    std::string problem = got.problem;
    if (problem.empty() && got.status != 200)
      problem = fmt::format("answered with status {}", got.status);
    Error::Kind kind = Error::Kind::Environment;
    if (problem.empty()) {
      const std::optional<std::string> content = content_of(got.body);
      const std::optional<double> number =
          content ? first_number(*content) : std::optional<double>();
      if (number) {
        out[got.number] = *number;
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
    if (++failures[got.number] > options_.retries) {
      throw Error(kind,
                  fmt::format("{}, {} times", what, failures[got.number]),
                  kind == Error::Kind::Data
                      ? "ask in \"question\" for a number alone, or raise \"max_tokens\""
                      : "start the server, or raise the reward's \"timeout\" or \"retries\"");
    }
    log::warn(what + "; it is asked again");
    waiting.push_back(got.number);
  };

  while (!waiting.empty() || client.num_open() > 0) {
    while (!waiting.empty() && std::cmp_less(client.num_open(), options_.at_once)) {
      const std::size_t i = waiting.back();
      waiting.pop_back();
      client.post(i, question(answers[i]));
    }
    if (poll) poll();
    for (const HttpClient::Response& response : client.wait(0.2))
      take(response);
  }
  return out;
}

}  // namespace tessera::tasks
