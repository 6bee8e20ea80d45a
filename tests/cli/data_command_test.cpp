// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cli/program.h"
#include "support/terminal.h"
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/files.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DataCommand : public ::testing::Test {
 protected:
  std::string write(const std::string& name, std::string_view content) const {
    const auto path = folder_.path() / name;
    files::write_atomic(path, std::string(content));
    return path.string();
  }
  /// A configuration of the task over a file of records.
  [[nodiscard]] std::string config(const std::string& task,
                                   const std::string& records,
                                   const std::string& more = "",
                                   int length = 32) const {
    return write("my.json",
                 R"({"model": {"num_layers": 1, "hidden_size": 16, "num_heads": 2},)"
                 R"( "task": ")" +
                     task + R"(", "data": {"train": ")" + records + R"(", "sequence_length": )" +
                     std::to_string(length) + more + R"(}, "train_batch_size": 1})");
  }
  static json::Value told(const Outcome& outcome) {
    return json::parse_strict(outcome.out, "stdout");
  }
  static std::int64_t number(const json::Value& value, const char* name) {
    const json::Value* const found = value.find(name);
    EXPECT_NE(found, nullptr) << name;
    return found == nullptr ? -1 : found->as_integer().value_or(-1);
  }
  files::TempDir folder_;
};

/// Makes standard output a terminal while it lives, and reads what is written to it.
class TerminalOutput {
 public:
  TerminalOutput() : master_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    if (master_ < 0 || ::grantpt(master_) != 0 || ::unlockpt(master_) != 0) return;
    const int terminal = ::open(::ptsname(master_), O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal < 0) return;
    std::fflush(stdout);
    before_ = ::dup(STDOUT_FILENO);
    ::dup2(terminal, STDOUT_FILENO);
    ::close(terminal);
    reader_ = std::thread([this] {
      std::array<char, 4096> some{};
      for (ssize_t count = 0; (count = ::read(master_, some.data(), some.size())) > 0;)
        text_.append(some.data(), static_cast<std::size_t>(count));
    });
  }
  ~TerminalOutput() {
    if (opened()) (void)end();
    if (master_ >= 0) ::close(master_);
  }
  TerminalOutput(const TerminalOutput&) = delete;
  TerminalOutput& operator=(const TerminalOutput&) = delete;

  [[nodiscard]] bool opened() const { return before_ >= 0; }
  /// Restores standard output and returns what was written.
  std::string end() {
    std::fflush(stdout);
    ::dup2(before_, STDOUT_FILENO);  // closes the terminal, which ends the reader
    ::close(before_);
    before_ = -1;
    reader_.join();
    return text_;
  }

 private:
  int master_ = -1, before_ = -1;
  std::thread reader_;
  std::string text_;
};

const char* const kSums =
    "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n"
    "{\"prompt\": \"3+4+5=\", \"completion\": \"12\"}\n"
    "{\"prompt\": \"1+1=\", \"completion\": \"2\"}\n";

TEST_F(DataCommand, ColoursWhatIsLearnedOnATerminal) {
  TESSERA_SKIP_WITHOUT_A_TERMINAL();
  const std::string path = config("sft", write("sums.jsonl", kSums), R"(, "pack": false)");
  const auto shown = [&]() -> std::string {
    std::vector<std::string> words = {"tessera", "data", path, "--samples", "1"};
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    TerminalOutput terminal;
    if (!terminal.opened()) {
      ADD_FAILURE() << "standard output is not a terminal";
      return "";
    }
    EXPECT_EQ(tessera_main(static_cast<int>(words.size()), argv.data()), 0);
    return terminal.end();
  };
  ::unsetenv("NO_COLOR");
  const std::string coloured = shown();
  EXPECT_THAT(coloured, AllOf(HasSubstr("1+1=\033[32m2"), Not(HasSubstr("{+"))));

  ::setenv("NO_COLOR", "1", 1);
  EXPECT_THAT(shown(), AllOf(HasSubstr("1+1={+2"), Not(HasSubstr("\033[32m"))));
  ::unsetenv("NO_COLOR");
}

TEST_F(DataCommand, ShowsWhatIsLearnedOfEachRecord) {
  const std::string path = config("sft", write("sums.jsonl", kSums), R"(, "pack": false)");

  const Outcome o = run_program({"data", path, "--samples", "2"});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("sample 1 of 3: 6 tokens, 2 learned, 26 of padding"),
                    HasSubstr("text    1+1={+2<end of text>+}"),
                    HasSubstr("ids     49 43 49 61 {+50+} {+0+}"),
                    HasSubstr("text    3+4+5={+12<end of text>+}"),
                    HasSubstr("lengths in tokens: 6 to 9, half of them at most 6")));
  EXPECT_THAT(o.out, Not(HasSubstr("sample 3 of 3")));
}

TEST_F(DataCommand, CountsForAMachine) {
  const std::string path = config("sft", write("sums.jsonl", kSums), R"(, "pack": false)");

  const json::Value out = told(run_program({"data", path, "--samples", "1", "--json"}));

  EXPECT_EQ(number(out, "samples"), 3);
  EXPECT_EQ(number(out, "records"), 3);
  EXPECT_EQ(number(out, "tokens"), 6 + 9 + 6);
  EXPECT_EQ(number(out, "labels"), 2 + 3 + 2);
  EXPECT_EQ(number(out, "end_labels"), 3);
  EXPECT_EQ(number(out, "duplicates"), 1);
  EXPECT_EQ(number(*out.find("forms"), "prompt_completion"), 3);
  ASSERT_EQ(out.find("lengths")->items().size(), 2U);
  EXPECT_EQ(number(out.find("lengths")->items()[0], "from"), 4);
  EXPECT_EQ(number(out.find("lengths")->items()[0], "count"), 2);
  EXPECT_EQ(number(out.find("lengths")->items()[1], "from"), 8);
  const json::Value& first = out.find("first")->items().at(0);
  EXPECT_EQ(first.find("labels")->dump(), "[-100,-100,-100,-100,50,0]");
  EXPECT_EQ(first.find("input_ids")->dump(), "[49,43,49,61,50,0]");
}

TEST_F(DataCommand, CountsTheTextsOfPackedSamples) {
  const std::string path = config("sft", write("sums.jsonl", kSums));

  const json::Value out = told(run_program({"data", path, "--json"}));

  EXPECT_EQ(number(out, "samples"), 1);
  EXPECT_EQ(number(out, "labels"), 2 + 3 + 2);
  EXPECT_EQ(number(out.find("lengths")->items()[0], "count"), 2);
}

TEST_F(DataCommand, RefusesAnswersThatNeverEnd) {
  const std::string path =
      config("sft",
             write("sums.jsonl", "{\"prompt\": \"1+1=\", \"completion\": \"2 is the sum\"}\n"),
             R"(, "pack": false)",
             8);

  const Outcome o = run_program({"data", path});

  EXPECT_EQ(o.code, 3) << o.err;
  EXPECT_THAT(o.out, HasSubstr("text    1+1={+2 is+}"));
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("the token that ends an answer is learned nowhere"),
                    HasSubstr("1 texts are cut: raise data.sequence_length, now 8")));
}

TEST_F(DataCommand, CountsClassesAndRefusesASingleOne) {
  const std::string two = write("two.csv", "text,label\ngood,yes\nbad,no\nfine,yes\n");
  const json::Value out = told(run_program({"data", config("classify", two), "--json"}));
  EXPECT_EQ(number(*out.find("classes"), "yes"), 2);
  EXPECT_EQ(number(*out.find("classes"), "no"), 1);
  EXPECT_EQ(out.find("first")->items()[1].find("label")->as_string(), "no");

  const std::string one = write("one.csv", "text,label\ngood,1\nfine,1\n");
  const Outcome refused = run_program({"data", config("classify", one)});
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, HasSubstr("every label is \"1\": there is nothing to tell apart"));
}

TEST_F(DataCommand, CountsBadAndEmptyRecordsAndThoseOfTheValidation) {
  const std::string train = write("train.jsonl",
                                  "{\"text\": \"a\", \"label\": 0}\n\n"
                                  "{\"text\": \"b\", \"label\": 1}\n{\"text\": 7, \"label\": 1}\n");
  const std::string valid = write("valid.jsonl", "{\"text\": \"b\", \"label\": 1}\n");
  const std::string path =
      config("classify", train, R"(, "validation": ")" + valid + R"(", "on_bad_record": "skip")");

  const Outcome skipped = run_program({"data", path});
  const Outcome stopped = run_program({"data", path, "--set", "data.on_bad_record=stop"});

  EXPECT_EQ(skipped.code, 0) << skipped.err;
  EXPECT_THAT(skipped.out,
              AllOf(testing::ContainsRegex("empty +1\n"),
                    testing::ContainsRegex("bad +1\n"),
                    testing::ContainsRegex("validation is in train +1\n"),
                    HasSubstr("train.jsonl:4: \"text\" is a number")));
  EXPECT_EQ(stopped.code, 3);
  EXPECT_THAT(stopped.err, HasSubstr("train.jsonl:4: \"text\" is a number"));
}

TEST_F(DataCommand, RecognisesTheRecordsOfAFile) {
  const auto task_of = [](const std::string& file) {
    const Outcome o = run_program({"data", file, "--json"});
    EXPECT_EQ(o.code, 0) << o.err;
    return told(o).find("task")->as_string();
  };
  EXPECT_EQ(task_of(write("chat.jsonl",
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
                          "{\"role\": \"assistant\", \"content\": \"ho\"}]}\n")),
            "sft");
  EXPECT_EQ(
      task_of(write("list.json", "{\"data\": [{\"instruction\": \"a\", \"output\": \"b\"}]}")),
      "sft");
  EXPECT_EQ(task_of(write("moods.json",
                          "[{\"text\": \"a\", \"label\": \"x\"},\n"
                          " {\"text\": \"b\", \"label\": \"y\"}]")),
            "classify");
  EXPECT_EQ(task_of(write("near.jsonl",
                          "{\"sentence1\": \"a\", \"sentence2\": \"b\", "
                          "\"label\": 2.5}\n")),
            "regression");
  EXPECT_EQ(task_of(write("names.jsonl", "{\"tokens\": [\"a\", \"b\"], \"tags\": [0, 1]}\n")),
            "tag");
  EXPECT_EQ(task_of(write("says.jsonl", "{\"source\": \"a\", \"target\": \"b\"}\n")), "seq2seq");
  EXPECT_EQ(task_of(write("book.txt", std::string(3000, 'x'))), "pretrain");

  const Outcome none = run_program({"data", write("none.jsonl", "{\"a\": 1}\n")});
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.err, HasSubstr("none.jsonl:1: the record has none of messages"));
}

TEST_F(DataCommand, ShowsTheTagsOfWordsByTheirNames) {
  const std::string file = write("names.jsonl",
                                 "{\"tokens\": [\"a\", \"b\"], \"tags\": [\"B-ORG\", \"O\"]}\n"
                                 "{\"tokens\": [\"c\", \"d\"], \"tags\": [\"O\", \"B-ORG\"]}\n");

  const Outcome shown = run_program({"data", file}), all = run_program({"data", file, "--json"});

  // A tag follows the first token of its word; with the byte tokenizer that is the space before it.
  EXPECT_THAT(shown.out, AllOf(HasSubstr("a{+B-ORG+} {+O+}b"), HasSubstr("c{+O+} {+B-ORG+}d")));
  const json::Value told = json::parse_strict(all.out, "stdout");
  EXPECT_EQ(told.find("first")->items().at(0).find("tags")->dump(), R"(["B-ORG","O",null])");
  EXPECT_EQ(told.find("first")->items().at(0).find("labels")->dump(), "[0,1,-100]");
}

TEST_F(DataCommand, ShowsTheTurnsThatATemplateMakes) {
  const Outcome o =
      run_program({"data",
                   write("chat.jsonl",
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"hi \x01\"}, "
                         "{\"role\": \"assistant\", \"content\": \"ho\"}]}\n")});
  EXPECT_EQ(o.code, 3) << "a control character in JSON is written as an escape";
  const Outcome good =
      run_program({"data",
                   write("chat.jsonl",
                         "{\"messages\": [{\"role\": \"user\", \"content\": \"hi \\u001b[2J\"}, "
                         "{\"role\": \"assistant\", \"content\": \"ho\"}]}\n")});
  EXPECT_EQ(good.code, 0) << good.err;
  EXPECT_THAT(good.out,
              AllOf(HasSubstr("hi \\x1b[2J<|im_end|>\\n"), HasSubstr("{+ho<|im_end|>+}")));
}

TEST_F(DataCommand, ShowsHiddenTokensWithWhatTheyHide) {
  const std::string path = config("masked_lm", write("book.txt", std::string(200, 'x')));
  const Outcome o = run_program({"data",
                                 path,
                                 "--set",
                                 "model.family=\"bert\"",
                                 "--set",
                                 "model.vocab_size=300",
                                 "--set",
                                 "masked_lm.mask_token_id=280",
                                 "--samples",
                                 "6"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("<280>{+x+}"));
  EXPECT_THAT(o.out, testing::ContainsRegex("documents +1\n"));
}

}  // namespace
}  // namespace tessera::cli
