// SPDX-License-Identifier: Apache-2.0
// Rewards by a model behind an endpoint, which is a thread of the test.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
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
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/tasks/rl/reward_http.h"

namespace tessera::tasks {
namespace {

using test::error_of;
using ::testing::HasSubstr;

/// A certificate of 127.0.0.1 that signs itself, and its key.
class Certificate {
 public:
  Certificate() : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    X509_set_version(certificate_, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate_), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate_), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate_), 3600);
    X509_set_pubkey(certificate_, key_);
    X509_NAME* const name = X509_get_subject_name(certificate_);
    X509_NAME_add_entry_by_txt(
        name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate_, name);
    add(NID_basic_constraints, "critical,CA:TRUE");
    add(NID_subject_alt_name, "IP:127.0.0.1");
    X509_sign(certificate_, key_, EVP_sha256());
  }
  ~Certificate() {
    X509_free(certificate_);
    EVP_PKEY_free(key_);
  }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;
  void write(const std::string& file) const {
    std::FILE* const out = std::fopen(file.c_str(), "w");
    ASSERT_NE(out, nullptr);
    PEM_write_X509(out, certificate_);
    std::fclose(out);
  }
  [[nodiscard]] SSL_CTX* server() const {
    SSL_CTX* const out = SSL_CTX_new(TLS_server_method());
    SSL_CTX_use_certificate(out, certificate_);
    SSL_CTX_use_PrivateKey(out, key_);
    return out;
  }

 private:
  void add(int kind, const char* value) {
    X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
    X509_add_ext(certificate_, extension, -1);
    X509_EXTENSION_free(extension);
  }
  EVP_PKEY* key_;
  X509* certificate_;
};

/// The end of a connection, with or without TLS.
class End {
 public:
  End(int end, SSL_CTX* tls) : end_(end) {
    if (tls == nullptr) return;
    tls_ = SSL_new(tls);
    SSL_set_fd(tls_, end_);
    sound_ = SSL_accept(tls_) == 1;
  }
  ~End() {
    if (tls_ != nullptr && sound_) SSL_shutdown(tls_);
    SSL_free(tls_);
    ::close(end_);
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;
  ssize_t receive(char* to, int size) {
    if (!sound_) return -1;
    return tls_ != nullptr ? SSL_read(tls_, to, size)
                           : ::recv(end_, to, static_cast<std::size_t>(size), 0);
  }
  void send(const std::string& text) {
    if (tls_ != nullptr) {
      SSL_write(tls_, text.data(), static_cast<int>(text.size()));
    } else {
      ::send(end_, text.data(), text.size(), MSG_NOSIGNAL);
    }
  }

 private:
  int end_;
  SSL* tls_ = nullptr;
  bool sound_ = true;
};

/// Answers each connection with what `answer` makes of the request's body, in full HTTP; "" is
/// silence until the end.
class Endpoint {
 public:
  /// `certificate`: for TLS; nullptr: plain HTTP.
  explicit Endpoint(std::function<std::string(const std::string& body)> answer,
                    const Certificate* certificate = nullptr)
      : answer_(std::move(answer)),
        listener_(::socket(AF_INET, SOCK_STREAM, 0)),
        tls_(certificate == nullptr ? nullptr : certificate->server()) {
    ::setenv("no_proxy", "*", 1);   // the endpoint is on this host
    std::signal(SIGPIPE, SIG_IGN);  // a client that refuses the certificate closes the connection
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
    SSL_CTX_free(tls_);
    ::close(listener_);
  }
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  [[nodiscard]] std::string url() const {
    return fmt::format(
        "{}://127.0.0.1:{}/v1/chat/completions", tls_ == nullptr ? "http" : "https", port_);
  }
  /// The head of the last request. Call it when no request is under way.
  [[nodiscard]] std::string head() const {
    const std::scoped_lock lock(mutex_);
    return head_;
  }

 private:
  void serve() {
    while (!stop_) {
      pollfd waits{listener_, POLLIN, 0};
      if (::poll(&waits, 1, 20) <= 0) continue;
      auto end = std::make_unique<End>(::accept(listener_, nullptr, nullptr), tls_);
      std::string got;
      std::size_t body = std::string::npos, length = 0;
      while (body == std::string::npos || got.size() < body + length) {
        char buffer[4096];
        const ssize_t count = end->receive(buffer, sizeof(buffer));
        if (count <= 0) break;
        got.append(buffer, static_cast<std::size_t>(count));
        if (const std::size_t at = got.find("\r\n\r\n"); at != std::string::npos) {
          body = at + 4;
          length = std::stoul(got.substr(got.find("Content-Length: ") + 16));
        }
      }
      if (body == std::string::npos || got.size() < body + length) continue;  // the client gave up
      {
        const std::scoped_lock lock(mutex_);
        head_ = got.substr(0, body);
      }
      const std::string reply = answer_(got.substr(body));
      if (reply.empty()) {
        silent_.push_back(std::move(end));
      } else {
        end->send(reply);
      }
    }
  }

  std::function<std::string(const std::string&)> answer_;
  int listener_, port_ = 0;
  std::atomic<bool> stop_ = false;
  SSL_CTX* tls_;
  std::vector<std::unique_ptr<End>> silent_;
  mutable std::mutex mutex_;
  std::string head_;
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
    if (text == "xx {other} ?|xx{prompt}") return reply("Neither -inf nor 1e999, but 2");
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

TEST(RlHttp, ReadsChunkedResponses) {
  const std::string body = completion_of("7");
  const Endpoint endpoint([&](const std::string&) {
    return fmt::format(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{}\r\n"
        "0\r\n\r\n",
        body.size(),
        body);
  });
  EXPECT_EQ(rewards(endpoint), (std::vector<double>{7, 7, 7}));
}

TEST(RlHttp, RefusesResponsesWithoutAnEnd) {
  const Endpoint endpoint([&](const std::string&) {
    return "HTTP/1.1 200 OK\r\n\r\n" + std::string(std::size_t{5} << 20, 'x');
  });
  EXPECT_THAT(error_of([&] { (void)rewards(endpoint, {.retries = 0}); }).what(),
              HasSubstr("without an end"));
}

TEST(RlHttp, AsksOverTlsWithATokenIfTheCertificateIsKnown) {
  const files::TempDir folder;
  const Certificate certificate;
  const std::string file = (folder.path() / "ca.pem").string();
  certificate.write(file);
  ::setenv("TESSERA_TEST_TOKEN", "secret", 1);
  const Endpoint endpoint([](const std::string&) { return reply("5"); }, &certificate);
  HttpRewardOptions options;
  options.retries = 0;

  EXPECT_THAT(error_of([&] { (void)rewards(endpoint, options); }).what(), HasSubstr("certificate"));
  options.ca_file = file;
  options.token_variable = "TESSERA_TEST_TOKEN";
  EXPECT_EQ(rewards(endpoint, options), (std::vector<double>{5, 5, 5}));
  EXPECT_THAT(endpoint.head(), HasSubstr("Authorization: Bearer secret\r\n"));
}

TEST(RlHttp, ChecksWhatAnEndpointNeedsBeforeATraining) {
  HttpRewardOptions options;
  options.url = "https://judge/v1";
  EXPECT_NO_THROW(check_endpoint(options));
  options.token_variable = "TESSERA_TEST_NO_TOKEN";
  EXPECT_THAT(error_of([&] { check_endpoint(options); }).what(), HasSubstr("NO_TOKEN is not set"));
  options.token_variable = "";
  options.ca_file = "/nowhere.pem";
  EXPECT_THAT(error_of([&] { check_endpoint(options); }).what(), HasSubstr("/nowhere.pem"));
}

TEST(RlHttp, KnowsUrls) {
  EXPECT_EQ(url_problem("http://127.0.0.1:8000/v1/chat/completions"), "");
  EXPECT_EQ(url_problem("http://judge"), "");
  EXPECT_EQ(url_problem("https://judge/v1"), "");
  EXPECT_NE(url_problem("ftp://judge"), "");
  EXPECT_NE(url_problem("judge:80"), "");
  EXPECT_NE(url_problem("http:///v1"), "");
  EXPECT_NE(url_problem("http://judge/a\r\nb: c"), "");
}

}  // namespace
}  // namespace tessera::tasks
