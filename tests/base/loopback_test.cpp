// SPDX-License-Identifier: Apache-2.0
#include "tessera/base/loopback.h"

#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::loopback {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

Response echo(const Request& request) {
  const std::string* const name = request.find("name");
  return {.body = request.path + " " + (name == nullptr ? "nobody" : *name)};
}

TEST(Loopback, AddressesAreOfThisHost) {
  for (const char* good : {"127.0.0.1:9464", "localhost:1", ":80", "0", "unix:/tmp/a.sock"})
    EXPECT_FALSE(problem_of(good).has_value()) << good;
  for (const char* bad :
       {"0.0.0.0:80", "10.0.0.1:80", "example.org:80", "", "127.0.0.1:", "70000", "80x", "unix:"})
    EXPECT_TRUE(problem_of(bad).has_value()) << bad;
  EXPECT_TRUE(problem_of("unix:/" + std::string(200, 'a')).has_value());
}

TEST(Loopback, AnswersAtAPortThatItTookItself) {
  const Server server("127.0.0.1:0", echo);

  const std::string answer = get(server.address(), "/a%20b?x=1&name=c+d%21");

  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n/a b c d!"));
}

TEST(Loopback, AnswersAtASocketAndRemovesItInTheEnd) {
  const files::TempDir dir;
  const std::filesystem::path path = dir.path() / "a.sock";
  {
    const Server server("unix:" + path.string(), echo);
    EXPECT_THAT(get(server.address(), "/x"), EndsWith("/x nobody"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Loopback, RefusesWhatIsTaken) {
  const Server server("127.0.0.1:0", echo);
  try {
    const Server other(server.address(), echo);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Environment);
    EXPECT_THAT(error.text(), HasSubstr(server.address()));
  }
}

// The name of another site's page may resolve to 127.0.0.1.
TEST(Loopback, ReadsOnlyRequestsForThisHost) {
  EXPECT_TRUE(read_request("GET / HTTP/1.1\r\nHost: localhost:80\r\n\r\n", false).has_value());
  EXPECT_TRUE(read_request("HEAD / HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", false).has_value());
  for (const char* head : {"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
                           "GET / HTTP/1.1\r\n\r\n",
                           "POST / HTTP/1.1\r\nHost: localhost\r\n\r\n",
                           "GET http://localhost/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
                           "GET /\r\nHost: localhost\r\n\r\n",
                           "GET",
                           "\r\n\r\n",
                           ""})
    EXPECT_FALSE(read_request(head, false).has_value()) << head;
  EXPECT_TRUE(read_request("GET / HTTP/1.1\r\n\r\n", true).has_value());
}

TEST(Loopback, ReportsWhatAHandlerThrows) {
  const Server server("127.0.0.1:0", [](const Request&) -> Response {
    throw Error(Error::Kind::Io, "no such run", "");
  });
  EXPECT_THAT(get(server.address(), "/"), StartsWith("HTTP/1.1 500"));
}

TEST(Loopback, AnswersManyOneAfterAnother) {
  const Server server("127.0.0.1:0", [](const Request&) -> Response {
    return {.body = std::string(1 << 16, 'x')};
  });
  for (int i = 0; i < 30; ++i)
    EXPECT_GT(get(server.address(), "/").size(), std::size_t{1} << 16);
}

}  // namespace
}  // namespace tessera::loopback
