// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/bad_records.h"

#include <string>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::cli {
namespace {

std::string fix_of(const std::string& fix) {
  try {
    naming_bad_record_flag([&] { throw Error(Error::Kind::Data, "a.csv:2: bad", fix); });
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    EXPECT_STREQ(error.what(), "a.csv:2: bad");
    return error.fix();
  }
  return "nothing was thrown";
}

TEST(BadRecords, AreLeftOutByTheOptionOfTheCommandNotByAKey) {
  EXPECT_EQ(fix_of("give a text; data.on_bad_record \"skip\" leaves such records out"),
            "give a text; --on-bad-record skip leaves such records out");
  EXPECT_EQ(fix_of("leave it out: data.on_bad_record \"skip\""),
            "leave it out: --on-bad-record skip");
  EXPECT_EQ(fix_of("give a text"), "give a text");
  EXPECT_NO_THROW(naming_bad_record_flag([] {}));
}

TEST(BadRecords, AreHandledAsTheOptionSays) {
  config::Problems problems;
  const auto task_of = [&](const char* type) {
    return tasks::make_task({.type = type, .params = json::Value::object()}, problems);
  };
  data::DataOptions options;

  BadRecordFlag{}.apply(options, *task_of("classify"));
  EXPECT_EQ(options.on_bad_record, "stop");
  BadRecordFlag{.given = "skip"}.apply(options, *task_of("classify"));
  EXPECT_EQ(options.on_bad_record, "skip");
  BadRecordFlag{.given = "stop"}.apply(options, *task_of("classify"));
  EXPECT_EQ(options.on_bad_record, "stop");
  EXPECT_THROW(BadRecordFlag{.given = "leave"}.apply(options, *task_of("classify")), Error);
  EXPECT_THROW(BadRecordFlag{.given = "skip"}.apply(options, *task_of("pretrain")), Error);
  EXPECT_TRUE(problems.empty());
}

}  // namespace
}  // namespace tessera::cli
