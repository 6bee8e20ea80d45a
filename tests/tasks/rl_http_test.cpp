// SPDX-License-Identifier: Apache-2.0
// Rewards by a model behind an endpoint, which is a thread of the test.
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tasks/tasks_support.h"
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/tasks/rl/reward_http.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using ::testing::HasSubstr;

/// Answers each connection with what `answer` makes of the request's body, in full HTTP; "" is
/// silence until the end.
class Endpoint {
 public:
  explicit Endpoint(std::function<std::string(const std::string& body)> answer)
      : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&place), sizeof(place)), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    socklen_t size = sizeof(place);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&place), &size);
    port_ = ntohs(place.sin_port);
    thread_ = std::thread([this] { serve(); });
  }
  ~Endpoint() {
    stop_ = true;
    thread_.join();
    for (const int end : silent_)
      ::close(end);
    ::close(listener_);
  }
  [[nodiscard]] std::string url() const {
    return fmt::format("http://127.0.0.1:{}/v1/chat/completions", port_);
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd waits{listener_, POLLIN, 0};
      if (::poll(&waits, 1, 20) <= 0) continue;
      const int end = ::accept(listener_, nullptr, nullptr);
      std::string got;
      std::size_t body = std::string::npos, length = 0;
      while (body == std::string::npos || got.size() < body + length) {
        char buffer[4096];
        const ssize_t count = ::recv(end, buffer, sizeof(buffer), 0);
        if (count <= 0) break;
        got.append(buffer, static_cast<std::size_t>(count));
        if (const std::size_t at = got.find("\r\n\r\n"); at != std::string::npos) {
          body = at + 4;
          length = std::stoul(got.substr(got.find("Content-Length: ") + 16));
        }
      }
      if (body == std::string::npos || got.size() < body + length) {  // the other end gave up
        ::close(end);
        continue;
      }
      const std::string reply = answer_(got.substr(body));
      if (reply.empty()) {
        silent_.push_back(end);
        continue;
      }
      ::send(end, reply.data(), reply.size(), MSG_NOSIGNAL);
      ::close(end);
    }
  }

  std::function<std::string(const std::string&)> answer_;
  int listener_, port_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<int> silent_;
  std::thread thread_;
};

std::string completion_of(const std::string& content) {
  return json::Value::object(
             {{"choices",
               json::Value::array({json::Value::object(
                   {{"message",
                     json::Value::object({{"content", json::Value::string(content)}})}})})}})
      .dump();
}
std::string reply(const std::string& content) {
  const std::string body = completion_of(content);
  return fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body);
}

std::string asked(const std::string& body) {
  const json::Value value = json::parse_strict(body, "request");
  return value.find("messages")->items().back().find("content")->as_string();
}

std::vector<double> rewards(const Endpoint& endpoint, HttpRewardOptions options = {}) {
  options.url = endpoint.url();
  options.question = "{answer} {other} {prompt}|{completion}";
  const json::Value record = json::parse(R"({"answer": "xx"})", "record");
  std::vector<Answer> answers;
  for (const char* text : {"x", "xx{prompt}", "xxx"})
    answers.push_back({.record = record, .place = "p.jsonl:3", .prompt = "?", .text = text});
  return RewardHttp(options).of(answers);
}

TEST(RlHttp, AsksAboutEachCompletion) {
  const Endpoint endpoint([](const std::string& body) {
    const std::string text = asked(body);
    if (text == "xx {other} ?|x") return reply("I would say -1.5 of 10.");
    if (text == "xx {other} ?|xx{prompt}") return reply("2");
    return reply("Score: 3");
  });
  EXPECT_EQ(rewards(endpoint), (std::vector<double>{-1.5, 2, 3}));
  EXPECT_EQ(rewards(endpoint, {.at_once = 1}), (std::vector<double>{-1.5, 2, 3}));
}

TEST(RlHttp, AsksAgain) {
  std::atomic<int> count = 0;
  const Endpoint endpoint([&](const std::string&) {
    const int number = count++;
    if (number == 0) return std::string("HTTP/1.1 503 Busy\r\n\r\n");
    if (number == 1) return reply("none");
    if (number == 2) return std::string("hello");
    return reply("4");
  });
  EXPECT_EQ(rewards(endpoint), (std::vector<double>{4, 4, 4}));
  EXPECT_EQ(count, 6);
}

TEST(RlHttp, ThatFailsIsNamedWithTheRecord) {
  const auto failure = [](const std::string& answer, double timeout = 20) {
    const Endpoint endpoint([&](const std::string&) { return answer; });
    return error_of([&] { (void)rewards(endpoint, {.timeout = timeout, .retries = 1}); });
  };
  const Error silent = failure("", 0.2);
  EXPECT_EQ(silent.kind(), Error::Kind::Environment);
  EXPECT_THAT(silent.what(), HasSubstr("no answer in time"));
  EXPECT_THAT(silent.what(), HasSubstr("p.jsonl:3"));
  EXPECT_THAT(failure("HTTP/1.1 404 Not Found\r\n\r\n").what(), HasSubstr("404"));
  EXPECT_THAT(failure("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}").what(),
              HasSubstr("cut off"));
  const Error wordy = failure(reply("good"));
  EXPECT_EQ(wordy.kind(), Error::Kind::Data);
  EXPECT_THAT(wordy.what(), HasSubstr("good"));
  EXPECT_THAT(failure("HTTP/1.1 200 OK\r\n\r\n[1]").what(), HasSubstr("no chat completion"));
}

TEST(RlHttp, NobodyThereIsAnError) {
  std::string url;
  {
    url = Endpoint([](const std::string&) { return std::string(); }).url();
  }
  HttpRewardOptions options;
  options.url = url;
  options.retries = 0;
  const json::Value record = json::Value::object();
  const std::vector<Answer> answers = {{.record = record, .place = "p", .prompt = "", .text = ""}};
  EXPECT_THAT(error_of([&] { (void)RewardHttp(options).of(answers); }).what(), HasSubstr(url));
}

TEST(RlHttp, ReadsResponses) {
  EXPECT_EQ(read_http_response("HTTP/1.0 200 OK\r\n\r\nabc").body, "abc");
  EXPECT_EQ(
      read_http_response(
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x\r\nde\r\n0\r\n\r\n")
          .body,
      "abcde");
  EXPECT_EQ(read_http_response("HTTP/1.1 200 OK\r\nTransfer-Encoding: "
                               "chunked\r\n\r\n3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n")
                .body,
            "abc0123456789");
  EXPECT_NE(read_http_response("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffff\r\nabc")
                .problem,
            "");
  EXPECT_NE(read_http_response("").problem, "");
  EXPECT_NE(read_http_response("HTTP/1.1 abc\r\n\r\n").problem, "");
}

TEST(RlHttp, KnowsUrls) {
  EXPECT_EQ(url_problem("http://127.0.0.1:8000/v1/chat/completions"), "");
  EXPECT_EQ(url_problem("http://judge"), "");
  EXPECT_NE(url_problem("https://judge/v1"), "");
  EXPECT_NE(url_problem("judge:80"), "");
  EXPECT_NE(url_problem("http:///v1"), "");
  EXPECT_NE(url_problem("http://judge/a\r\nb: c"), "");
}

}  // namespace
}  // namespace tessera::tasks
