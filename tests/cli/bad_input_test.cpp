// SPDX-License-Identifier: Apache-2.0
// User errors in a configuration, in data or on the command line: exit code, place and fix, before
// any rank starts.
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tessera/base/clock.h"
#include "tessera/base/files.h"
#include "tessera/cli/app.h"
#include "tessera/config/json.h"
#include "tessera/data/token_file.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// Drops root privileges while it lives, so that file modes also apply to this process.
class OrdinaryUser {
 public:
  OrdinaryUser() : before_(geteuid()) {
    if (before_ == 0) {
      EXPECT_EQ(seteuid(kNobody), 0);
    }
  }
  ~OrdinaryUser() { EXPECT_EQ(seteuid(before_), 0); }
  OrdinaryUser(const OrdinaryUser&) = delete;
  OrdinaryUser& operator=(const OrdinaryUser&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  uid_t before_;
};

class BadInput : public testing::Test {
 protected:
  BadInput() { setenv("TESSERA_CACHE", path("cache").c_str(), 1); }
  ~BadInput() override { unsetenv("TESSERA_CACHE"); }

  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::string write(const std::string& name, const std::string& content) const {
    files::fs::create_directories(folder_.path() / files::fs::path(name).parent_path());
    files::write_atomic(folder_.path() / name, content);
    return path(name);
  }
  // Returns a valid configuration with additional members.
  std::string config(const std::string& members,
                     const std::string& model = R"({"preset": "nano"})") const {
    write("text.txt", std::string(4000, 'x'));
    return config_of(path("text.txt"), members, model);
  }
  // Returns a valid configuration for these data.
  std::string config_of(const std::string& data,
                        const std::string& members = R"("train_batch_size": 4)",
                        const std::string& model = R"({"preset": "nano"})") const {
    return write("c.json",
                 "{\n \"model\": " + model + ",\n \"data\": {\"train\": \"" + data +
                     "\", \"sequence_length\": 32},\n \"trainer\": {\"max_steps\": 2},\n \"run\": "
                     "{\"dir\": \"" +
                     path("run") + "\"}" + (members.empty() ? "" : ",\n " + members) + "\n}");
  }
  // Runs `tessera train` with these arguments; standard error is stored in err_.
  int train(std::vector<std::string> words) {
    words.insert(words.begin(), {"tessera", "train"});
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const double begin = now_s();
    const int code = tessera_main(static_cast<int>(words.size()), argv.data());
    seconds_ = now_s() - begin;
    out_ = testing::internal::GetCapturedStdout();
    err_ = testing::internal::GetCapturedStderr();
    return code;
  }
  // Checks that `train` with these arguments exits with `code` immediately, before a run folder
  // exists, with each of `parts` and a fix in its message; and that a dry run does the same.
  void expect_refused(int code,
                      const std::vector<std::string>& words,
                      const std::vector<std::string>& parts) {
    constexpr double kAtOnce = 2.0;  // seconds
    for (const bool dry : {false, true}) {
      SCOPED_TRACE(dry ? "dry run" : "run");
      std::vector<std::string> all = words;
      if (dry) all.emplace_back("--dry-run");
      EXPECT_EQ(train(all), code) << err_;
      EXPECT_LT(seconds_, kAtOnce);
      for (const std::string& part : parts)
        EXPECT_THAT(err_, HasSubstr(part));
      EXPECT_THAT(err_, HasSubstr("fix: "));
      EXPECT_FALSE(files::fs::exists(folder_.path() / "run"));
    }
  }

  files::TempDir folder_;
  std::string out_, err_;
  double seconds_ = 0;
};

TEST_F(BadInput, AMissingFileComesWithTheNearest) {
  write("my_model.json", "{}");

  EXPECT_EQ(train({path("my_modle.json")}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("my_modle.json does not exist"), HasSubstr("my_model.json")));
  EXPECT_EQ(train({}), 2);
  EXPECT_THAT(err_, HasSubstr("CONFIG is missing"));
}

TEST_F(BadInput, AFolderIsNotAConfiguration) {
  EXPECT_EQ(train({folder_.path().string()}), 2);
  EXPECT_THAT(err_, HasSubstr("is a folder"));
  write("config.json", R"({"model_type": "gpt2"})");
  EXPECT_EQ(train({folder_.path().string()}), 2);
  EXPECT_THAT(err_, HasSubstr("\"model\": {\"from\": "));
  write("status.json", "{}");
  EXPECT_EQ(train({folder_.path().string()}), 2);
  EXPECT_THAT(err_, HasSubstr("to continue this run"));
}

TEST_F(BadInput, ADeviceIsNotAConfiguration) {
  expect_refused(2, {"/dev/zero"}, {"/dev/zero is a device"});
}

TEST_F(BadInput, BrokenJsonHasLineColumnAndKeyPath) {
  expect_refused(2,
                 {write("c.json", "{\n \"trainer\": {\n  \"max_steps\": 5x\n }\n}")},
                 {"c.json:3:16", "trainer.max_steps", "numbers look like"});
}

TEST_F(BadInput, AMissingComma) {
  expect_refused(2, {write("c.json", "{\"a\": 1\n \"b\": 2,, \"c\": 3}")}, {"c.json:2:9", "comma"});
  expect_refused(
      2, {write("c.json", R"({"a": 1 "b": 2})")}, {"c.json:1:9", "put a comma before it"});
}

TEST_F(BadInput, AnEmptyFile) {
  expect_refused(2, {write("c.json", "")}, {"c.json:1:1", "empty"});
}

TEST_F(BadInput, ABinaryFile) {
  expect_refused(2,
                 {write("c.json",
                        std::string("\x7F"
                                    "ELF\0\0",
                                    6))},
                 {"c.json", "binary"});
}

TEST_F(BadInput, TwoHundredThousandBrackets) {
  expect_refused(2, {write("c.json", std::string(200'000, '['))}, {"c.json:1:201", "deeper"});
  EXPECT_LT(err_.size(), 400U);  // its key path is shortened
}

TEST_F(BadInput, NotANumber) {
  expect_refused(2,
                 {write("c.json", "{\"optimizer\":\n {\"params\": {\"lr\": NaN}}}")},
                 {"c.json:2:20", "NaN", "optimizer.params.lr"});
}

TEST_F(BadInput, ADuplicateKeyHasBothPlaces) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "trainer": {"seed": 1})")},
                 {"c.json:6:25", "\"trainer\"", "twice", "first at line 4"});
}

TEST_F(BadInput, AnUnknownKeyHasTheNearestName) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "optimzer": {})")},
                 {"c.json:6:25", "optimzer: unknown key", "did you mean \"optimizer\"?"});
}

TEST_F(BadInput, AWrongType) {
  expect_refused(2,
                 {config(R"("train_batch_size": "many")")},
                 {"c.json:6:22", "train_batch_size", "expected an integer", "\"many\""});
  expect_refused(2, {config(R"("train_batch_size": 2.5)")}, {"expected an integer", "2.5"});
  expect_refused(2, {config(R"("train_batch_size": 4, "eval": true)")}, {"eval", "an object"});
}

TEST_F(BadInput, AValueOutOfRange) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "checkpoint": {"keep": 0})")},
                 {"c.json:6:48", "checkpoint.keep", "at least 1", "found 0", "set it to 1"});
  expect_refused(
      2, {config(R"("train_batch_size": 1e99)")}, {"train_batch_size", "expected an integer"});
}

TEST_F(BadInput, SeveralMistakesAreAllReported) {
  expect_refused(
      2,
      {config(R"("train_batch_size": "many", "optimzer": {}, "steps_per_print": 0)",
              R"({"hidden_size": 100, "num_heads": 3, "num_layers": 1})")},
      {"4 problems", "train_batch_size: ", "optimzer: ", "steps_per_print: ", "model.num_heads: "});
}

TEST_F(BadInput, ConsequencesOfAMistakeAreNotReported) {
  expect_refused(2, {write("c.json", "[1]")}, {"c.json:1:1: expected an object"});
  expect_refused(2,
                 {write("c.json", R"({"train_batch_size": 4, "data": {"train": 7}})")},
                 {"data.train: expected a string"});
}

TEST_F(BadInput, AWrongValueIsNotAMissingOne) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "eval": {"every": 1})"),
                  "--set",
                  "data.validation_fraction=10%"},
                 {"data.validation_fraction: expected a number", "10%"});
  EXPECT_THAT(err_, testing::Not(HasSubstr("neither")));
  const std::string few = R"("hidden_size": 16, "num_heads": 2)";
  expect_refused(2,
                 {config(R"("train_batch_size": 4)", R"({"num_layers": 1000000000, )" + few + "}")},
                 {"model.num_layers: expected at most 10000"});
  EXPECT_THAT(err_, testing::Not(HasSubstr("is missing")));
}

TEST_F(BadInput, AKeyInTheWrongPlaceComesWithTheRightOne) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "optimizer": {"lr": 1e-3})")},
                 {"optimizer.lr: unknown key", "did you mean optimizer.params.lr?"});
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "max_steps": 5)")},
                 {"max_steps: unknown key", "did you mean trainer.max_steps?"});
  expect_refused(2,
                 {config(R"("train_batch_size": 4)", R"({"n_layer": 4, "n_embd": 64})")},
                 {"did you mean \"num_layers\"?", "did you mean \"hidden_size\"?"});
  expect_refused(2,
                 {config(R"("train_batch_size": 4)", R"({"preset": "gpt2"})")},
                 {"did you mean \"gpt2-small\"?"});
}

TEST_F(BadInput, BatchArithmeticThatDoesNotCloseIsPrinted) {
  expect_refused(
      2,
      {config(
           R"("train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 3)"),
       "-n",
       "2"},
      {"c.json:6:22",
       "train_batch_size 16 is not micro 4 x accumulation 3 x ranks 2 = 24",
       "to 24"});
}

TEST_F(BadInput, HeadsThatDoNotDivideTheHiddenSize) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4)",
                         R"({"hidden_size": 100, "num_heads": 3, "num_layers": 1})")},
                 {"c.json:2:45", "model.num_heads", "3", "100", "choose num_heads from 1, 2, 4"});
}

TEST_F(BadInput, ASequenceLongerThanTheModelHasPositions) {
  expect_refused(
      2,
      {config(R"("train_batch_size": 4)", R"({"preset": "nano", "max_positions": 8})")},
      {"c.json:3:", "data.sequence_length", "32", "8", "model.max_positions at least 32"});
}

TEST_F(BadInput, AVocabularySmallerThanTheTokenizers) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4)", R"({"preset": "nano", "vocab_size": 100})")},
                 {"c.json:2:44", "model.vocab_size", "100", "256", "at least 256"});
}

TEST_F(BadInput, AKeyThatIsNotBuiltYet) {
  expect_refused(
      2,
      {config(R"("train_batch_size": 4, "seq_parallel_communication_data_type": "fp16")")},
      {"c.json:6:65", "seq_parallel_communication_data_type", "not built yet", "\"fp32\""});
}

TEST_F(BadInput, SequencesThatRanksCannotShare) {
  expect_refused(2,
                 {config(R"("train_batch_size": 4, "parallel": {"context": 3})"), "-n", "3"},
                 {"data.sequence_length", "6 chunks, two a rank", "fix: set it to"});
}

// 4 layers between embedding and head, 4 heads, 32 tokens.
TEST_F(BadInput, AllThatIsWrongWithALayout) {
  expect_refused(2,
                 {config(R"("train_micro_batch_size_per_gpu": 1,
                            "parallel": {"pipeline": {"size": 9, "schedule": "1f2b"},
                                         "tensor": {"size": 300}, "context": {"size": 20}})"),
                  "-n",
                  "7"},
                 {"6 problems",
                  "pipeline 9 x tensor 300 x context 20 = 54000",
                  "parallel.pipeline.schedule: unknown value",
                  "9 stages need at least 9 blocks, and the model has 6",
                  "300 ranks cannot share 4 heads",
                  "300 ranks cannot share 256 tokens of the vocabulary",
                  "32 tokens cannot be cut into 40 chunks"});
  expect_refused(2,
                 {config(R"("train_micro_batch_size_per_gpu": 1,
                            "parallel": {"pipeline": {"size": 2, "chunks": 4},
                                         "tensor": {"mode": "2d", "size": 5},
                                         "context": {"size": 3, "mode": "rin"}})"),
                  "-n",
                  "7"},
                 {"pipeline 2 x tensor 5 x context 3 = 30",
                  "2 stages with 4 chunks each need at least 8 blocks",
                  "5 ranks are not a square",
                  "parallel.context.mode: unknown value",
                  "32 tokens cannot be cut into 3 chunks"});
}

// ---- data ----

TEST_F(BadInput, MissingDataComesWithTheNearest) {
  write("corpus.txt", "x");
  expect_refused(
      3, {config_of(path("corpsu.txt"))}, {"no such file", "corpsu.txt", path("corpus.txt")});
}

TEST_F(BadInput, EmptyData) {
  expect_refused(3, {config_of(write("empty.txt", ""))}, {"empty.txt: empty"});
  expect_refused(3, {config_of(write("blank.jsonl", "\n\n"))}, {"blank.jsonl"});
  files::fs::create_directories(path("nothing"));
  expect_refused(
      3, {config_of(path("nothing"))}, {"no .txt, .jsonl, .parquet, .gz or .zst file", "nothing"});
}

TEST_F(BadInput, UnreadableData) {
  const std::string file = config(R"("train_batch_size": 4)");
  files::fs::permissions(folder_.path(), files::fs::perms::all);
  files::fs::permissions(path("text.txt"), files::fs::perms::none);
  const OrdinaryUser user;

  expect_refused(3, {file}, {"text.txt", "Permission denied", "may be read"});
}

TEST_F(BadInput, DataThatAreNotText) {
  expect_refused(3,
                 {config_of(write("bad.txt", "good\nline\xFF two\n"))},
                 {"bad.txt:2:5", "0xFF", "iconv", "data.invalid_utf8"});
  expect_refused(3,
                 {config_of(write("picture.png", "\x89PNG\r\n"))},
                 {"picture.png is a picture", "image_classify"});
}

TEST_F(BadInput, ALineWithoutItsField) {
  expect_refused(3,
                 {config_of(write("a.jsonl", "{\"text\": \"x\"}\n{\"body\": \"y\"}\n"))},
                 {"a.jsonl:2:", "no field \"text\"", "it has: body", "data.text_field"});
  expect_refused(3, {config_of(write("b.jsonl", "{\"text\": \"x\"\n"))}, {"b.jsonl:1:"});
}

TEST_F(BadInput, LessDataThanOneBatch) {
  expect_refused(3,
                 {config_of(write("small.txt", std::string(100, 'x')))},
                 {"data.train has 100 tokens", "3 windows of 32 tokens", "at least 4 are needed"});
}

// A .bin/.idx pair of 4,000 tokens, id 120 each.
TEST_F(BadInput, ATokenFileThatIsCutShort) {
  data::tokenize(
      {write("text.txt", std::string(4000, 'x'))}, *text::make_tokenizer({}), path("pair"), {});
  files::fs::resize_file(path("pair.bin"), 7'999);
  expect_refused(3, {config_of(path("pair"))}, {"pair.bin", "truncated: 7999 bytes", "8000"});
  files::fs::resize_file(path("pair.bin"), 8'000);
  files::fs::resize_file(path("pair.idx"), 40);
  expect_refused(3, {config_of(path("pair.bin"))}, {"pair.idx", "does not fit a file of 40 bytes"});
  // A file without an index is nanoGPT's, unless its size is odd.
  files::fs::remove(path("pair.idx"));
  files::fs::resize_file(path("pair.bin"), 7'999);
  expect_refused(3, {config_of(path("pair.bin"))}, {"pair.bin", "odd number of bytes"});
  expect_refused(3, {config_of(path("pair.idx"))}, {"pair.idx"});
}

TEST_F(BadInput, TokensBeyondTheVocabulary) {
  data::tokenize({write("text.txt", std::string(4000, 'x'))},
                 *text::make_tokenizer({.type = "gpt2"}),
                 path("pair"),
                 {});
  expect_refused(
      3,
      {config_of(
          path("pair"), R"("train_batch_size": 1)", R"({"preset": "nano", "max_positions": 64})")},
      {"pair.bin", "token 0 has the id", "0 to 255", "tokenizer.type"});
}

// ---- places ----

TEST_F(BadInput, ARunFolderThatCannotBeWritten) {
  const std::string file = config(R"("train_batch_size": 4)"), plain = write("plain", "");
  for (const std::string& place : {plain, plain + "/run", std::string("/proc/run")}) {
    expect_refused(8,
                   {file, "--set", "run.dir=" + place},
                   {"cannot write to the run folder " + place, "choose another run.dir"});
  }
  files::fs::create_directories(path("closed"));
  files::fs::permissions(folder_.path(), files::fs::perms::all);
  files::fs::permissions(path("closed"), files::fs::perms::owner_read);
  files::fs::create_directories(path("half/checkpoints"));
  files::fs::permissions(path("half"), files::fs::perms::all);
  files::fs::permissions(path("half/checkpoints"), files::fs::perms::owner_read);
  const OrdinaryUser user;
  expect_refused(8, {file, "--set", "run.dir=" + path("closed")}, {"closed", "Permission denied"});
  expect_refused(8,
                 {file, "--set", "run.dir=" + path("half")},
                 {path("half/checkpoints") + ": Permission denied"});
}

TEST_F(BadInput, AFolderOfAMonitorThatCannotBeWritten) {
  const std::string file = config(R"("train_batch_size": 4)"), plain = write("plain", "");
  for (const std::string monitor : {"tensorboard", "csv_monitor"}) {
    for (const std::string& place : {plain, plain + "/inside", std::string("/proc/logs")}) {
      expect_refused(
          8,
          {file, "--set", monitor + ".enabled=true", "--set", monitor + ".output_path=" + place},
          {monitor + ".output_path: cannot write to " + place, "choose another folder"});
    }
    // A monitor that is not enabled writes nothing.
    EXPECT_EQ(train({file, "--set", monitor + ".output_path=" + plain, "--dry-run"}), 0) << err_;
  }
}

TEST_F(BadInput, ARunFolderThatIsInUse) {
  files::fs::create_directories(path("used"));
  const auto lock = files::Lock::try_acquire(path("used") + "/lock");
  expect_refused(
      8,
      {config(R"("train_batch_size": 4)"), "--set", "run.dir=" + path("used")},
      {"is in use by host ", "process " + std::to_string(getpid()), "choose another run.dir"});
}

// ---- files of other programs ----

// Writes a Hugging Face folder whose weights are these bytes.
TEST_F(BadInput, WeightsWithAFalseHeader) {
  write(
      "hf/config.json",
      R"({"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 32, "vocab_size": 256})");
  const std::string file = config(R"("train_batch_size": 4, "tokenizer": {"type": "byte"})",
                                  "{\"from\": \"" + path("hf") + "\"}");
  const auto with = [&](std::uint64_t length, const std::string& header, std::size_t data) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    write("hf/model.safetensors", bytes + header + std::string(data, '\0'));
  };
  const auto tensor = [](const std::string& name, const std::string& shape, const std::string& at) {
    return "\"" + name + R"(":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + at + "}";
  };
  const auto refused = [&](const std::string& header, std::size_t data, const std::string& part) {
    with(header.size(), header, data);
    expect_refused(4, {file}, {"model.safetensors", part});
  };

  with(~std::uint64_t{0}, "{}", 0);
  expect_refused(4, {file}, {"model.safetensors", "header"});
  refused("{" + tensor("wte.weight", "[2]", "[0,8]") + "}", 4, "claims bytes [0, 8) of 4");
  refused(
      "{" + tensor("a", "[2]", "[0,8]") + "," + tensor("b", "[2]", "[4,12]") + "}", 12, "inside");
  refused("{" + tensor("a", "[4294967296,4294967296]", "[0,0]") + "}", 0, "overflows");
}

TEST_F(BadInput, AbsurdNumbersOfRanks) {
  const std::string file = config(R"("train_batch_size": 4)");
  for (const std::string ranks : {"0", "-1", "1025", "99999999999"})
    expect_refused(2, {file, "--num-gpus=" + ranks}, {"-n " + ranks, "1 to 1024"});
  expect_refused(2, {file, "-n", "99999999999999999999"}, {"-n"});
  expect_refused(2, {file, "-n", "two"}, {"two"});
  expect_refused(2, {file, "-n", "8"}, {"c.json:6:22", "8 ranks", "4 sequences"});
}

TEST_F(BadInput, TwoConfigurations) {
  const std::string other = write("b.json", R"({"train_batch_size": 8})");
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "--deepspeed", other}), 2);
  EXPECT_THAT(err_,
              AllOf(HasSubstr("train_batch_size is 4 at"), HasSubstr("8 at " + other + ":1")));
}

TEST_F(BadInput, ALauncherThatDisagrees) {
  setenv("RANK", "0", 1);
  setenv("LOCAL_RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "localhost", 1);
  setenv("MASTER_PORT", "29500", 1);

  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "-n", "3"}), 2);

  for (const char* name :
       {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    unsetenv(name);
  EXPECT_THAT(err_, AllOf(HasSubstr("-n 3"), HasSubstr("2 ranks")));
}

TEST_F(BadInput, AModelThatDoesNotFitIntoMemory) {
  EXPECT_EQ(
      train({config(R"("train_batch_size": 2)", R"({"preset": "gpt3"})"), "-n", "2", "--dry-run"}),
      5);
  EXPECT_THAT(err_, AllOf(HasSubstr("TiB"), HasSubstr("free"), HasSubstr("model.preset")));
}

TEST_F(BadInput, ADryRunOfAGoodConfigurationStartsNothing) {
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "-n", "2", "--dry-run"}), 0) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("micro 2 x accumulation 1 x ranks 2"), HasSubstr("free")));
  EXPECT_FALSE(files::fs::exists(folder_.path() / "run" / "metrics.jsonl"));
}

TEST_F(BadInput, ADryRunAsJsonHasThePlan) {
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "--dry-run", "--json"}), 0) << err_;

  const json::Value plan = json::parse_strict(out_, "stdout");
  EXPECT_EQ(plan.find("config")->find("train_batch_size")->as_integer(), 4);
  EXPECT_GT(plan.find("memory_per_rank")->find("activations")->as_integer(), 0);
}

TEST_F(BadInput, OverridesAreNamedInMessages) {
  EXPECT_EQ(train({config(R"("train_batch_size": 4)"), "--set", "trainer.max_step=3"}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr("--set trainer.max_step=3"), HasSubstr("\"max_steps\"")));
}

}  // namespace
}  // namespace tessera::cli
