// SPDX-License-Identifier: Apache-2.0
// Progress reports of a conversion.
#include "tessera/cli/convert_progress.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "cli/convert_support.h"
#include "cli/program.h"
#include "support/source_dir.h"
#include "support/terminal.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera/base/text.h"
#include "tessera/checkpoint/streamed_save.h"
#include "tessera/interop/export.h"
#include "tessera/interop/foreign_write.h"
#include "tessera/interop/model_export.h"

namespace tessera::cli {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

class Listener final : public engine::Console {
 public:
  explicit Listener(bool terminal) : terminal_(terminal) {}
  void line(std::string_view text) override { lines.emplace_back(text); }
  void live(std::string_view text) override { lives.emplace_back(text); }
  void stream(std::string_view) override { ADD_FAILURE(); }
  [[nodiscard]] bool is_terminal() const override { return terminal_; }
  std::vector<std::string> lines, lives;

 private:
  bool terminal_;
};

std::vector<int> shares_in(const std::string& text) {
  static const std::regex share("([0-9]+) %");
  std::vector<int> out;
  for (std::sregex_iterator it(text.begin(), text.end(), share), end; it != end; ++it)
    out.push_back(std::stoi((*it)[1].str()));
  return out;
}

/// Each event has one percentage, they never decrease, and the last one is 100 %.
void expect_rising(const std::vector<std::string>& events) {
  ASSERT_FALSE(events.empty());
  int before = 0;
  for (const std::string& event : events) {
    const auto shares = shares_in(event);
    ASSERT_EQ(shares.size(), 1U) << event;
    EXPECT_GE(shares[0], before) << event;
    EXPECT_LE(shares[0], 100) << event;
    before = shares[0];
  }
  EXPECT_EQ(before, 100);
}

TEST(ProgressOfAConversion, RisesToAllBytesOnATerminal) {
  double now = 100;
  Listener terminal(true);
  ConvertProgress progress(10'000, terminal, [&] { return now; });

  for (int i = 0; i < 1000; ++i) {
    now += 0.02;
    progress.add(10);
  }

  expect_rising(terminal.lives);
  EXPECT_TRUE(terminal.lines.empty());
  EXPECT_EQ(progress.done(), 10'000U);
  // 20 s, ten times a second.
  EXPECT_GT(terminal.lives.size(), 100U);
  EXPECT_LE(terminal.lives.size(), 201U);
  const std::string all = text::bytes(10'000);
  EXPECT_THAT(terminal.lives.back(),
              EndsWith("[########################] 100 %, " + all + " of " + all));
  for (const std::string& live : terminal.lives)
    EXPECT_LT(live.size(), 80U) << live;
}

TEST(ProgressOfAConversion, SaysTheTimeThatIsLeft) {
  double now = 0;
  Listener terminal(true);
  ConvertProgress progress(1000, terminal, [&] { return now; });

  now = 30;
  progress.add(250);

  // A quarter took 30 s.
  ASSERT_EQ(terminal.lives.size(), 1U);
  EXPECT_THAT(terminal.lives[0], HasSubstr(" 25 %"));
  EXPECT_THAT(terminal.lives[0], EndsWith(text::duration(90) + " left"));
}

TEST(ProgressOfAConversion, IsPlainLinesEveryFiveSecondsWhereThereIsNoTerminal) {
  double now = 0;
  Listener pipe(false);
  ConvertProgress progress(1000, pipe, [&] { return now; });

  for (int i = 0; i < 100; ++i) {
    now += 0.25;
    progress.add(10);
  }

  expect_rising(pipe.lines);
  EXPECT_TRUE(pipe.lives.empty());
  EXPECT_EQ(pipe.lines.size(), 5U);  // 25 s
  for (const std::string& line : pipe.lines)
    EXPECT_EQ(line.find_first_of("\r\033[#"), std::string::npos) << line;
}

TEST(ProgressOfAConversion, OfAMomentIsNotALine) {
  double now = 0;
  Listener pipe(false);
  ConvertProgress progress(1000, pipe, [&] { return now += 1; });

  progress.add(500);
  progress.add(500);

  EXPECT_TRUE(pipe.lines.empty());
}

/// Checks the progress that a writer reports to a terminal.
void expect_all_bytes(std::uint64_t total,
                      const std::function<void(const checkpoint::Written&)>& write) {
  double now = 0;
  Listener terminal(true);
  ConvertProgress progress(total, terminal, [&] { return now += 1; });

  write([&](std::uint64_t bytes) { progress.add(bytes); });

  EXPECT_EQ(progress.done(), total);
  expect_rising(terminal.lives);
}

std::uint64_t bytes_of(const std::vector<checkpoint::StreamedTensor>& tensors) {
  std::uint64_t total = 0;
  for (const auto& tensor : tensors)
    total += tensor.bytes();
  return total;
}

class ProgressOfWriters : public Conversions {};

TEST_F(ProgressOfWriters, CountsTheBytesOfEveryFormat) {
  const interop::ModelExport model = interop::open_model_export(run_folder(), std::nullopt);
  const std::uint64_t weights_bytes = bytes_of(model.tensors);
  for (const std::uint64_t shard : {std::uint64_t{1} << 40, std::uint64_t{2000}}) {
    fs::create_directory(path("hf" + std::to_string(shard)));
    expect_all_bytes(weights_bytes, [&](const checkpoint::Written& written) {
      interop::write_hf_weights(path("hf" + std::to_string(shard)), model.tensors, shard, written);
    });
  }
  expect_all_bytes(weights_bytes, [&](const checkpoint::Written& written) {
    interop::write_torch_weights(path("m.bin"), model.tensors, written);
  });
  fs::create_directory(path("ours"));
  checkpoint::Meta meta;
  meta.config = meta.extra = json::Value::object();
  expect_all_bytes(weights_bytes, [&](const checkpoint::Written& written) {
    checkpoint::write_checkpoint(path("ours"), meta, model.tensors, written);
  });
}

TEST_F(ProgressOfWriters, CountsTheBytesOfATraining) {
  const interop::Foreign training = interop::open_training_export(
      tessera::test::source_dir() / "tests/golden/reference/interop/torch_tutorial");
  fs::create_directory(path("ds"));
  // Weights and two moments, all in fp32.
  EXPECT_EQ(interop::universal_bytes(training), 3 * bytes_of(training.weights));

  expect_all_bytes(interop::universal_bytes(training), [&](const auto& written) {
    interop::write_universal(path("ds"), training, written);
  });
  expect_all_bytes(interop::torch_loop_bytes(training), [&](const auto& written) {
    interop::write_torch_loop(path("model_1.pth"), path("optimizer_1.pth"), training, written);
  });
}

/// Returns what the program writes to a terminal; `code` receives its exit code.
std::string on_a_terminal(std::vector<std::string> words, int& code) {
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    words.insert(words.begin(), "tessera");
    std::vector<char*> argv;
    for (std::string& word : words)
      argv.push_back(word.data());
    argv.push_back(nullptr);
    const int ended = tessera_main(static_cast<int>(words.size()), argv.data());
    std::fflush(stdout);
    ::_exit(ended);
  }
  std::string out;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(terminal, buffer, sizeof(buffer))) > 0;)
    out.append(buffer, static_cast<std::size_t>(got));
  int status = -1;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return out;
}

TEST_F(ProgressOfWriters, IsShownOnATerminalUnlessItIsToBeQuiet) {
  TESSERA_SKIP_WITHOUT_A_TERMINAL();
  int code = -1;
  const std::string shown = on_a_terminal({"convert", run_folder(), path("a")}, code);

  EXPECT_EQ(code, 0) << shown;
  const auto shares = shares_in(shown);
  ASSERT_FALSE(shares.empty()) << shown;
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end())) << shown;
  EXPECT_EQ(shares.back(), 100);
  for (const char* silent : {"--quiet", "--json"}) {
    const std::string said =
        on_a_terminal({"convert", run_folder(), path(std::string("b") + silent), silent}, code);
    EXPECT_EQ(code, 0) << said;
    EXPECT_TRUE(shares_in(said).empty()) << said;
  }
  EXPECT_TRUE(shares_in(run_program({"convert", run_folder(), path("c")}).out).empty());
}

}  // namespace
}  // namespace tessera::cli
