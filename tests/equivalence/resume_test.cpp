// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A run that stops after each step and continues equals one that was not interrupted: with dropout,
// in mid-epoch, with accumulation, in another layout.
#include <filesystem>
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gtest/gtest.h>

namespace tessera::test {
namespace {

/// Trains to `stop`, resumes to `end` in `second`, and compares with the undisturbed run.
void expect_resume_equals(const TinyRun& run,
                          const Trace& undisturbed,
                          std::int64_t stop,
                          std::int64_t end,
                          const Layout& first,
                          const Layout& second) {
  SCOPED_TRACE("stopped after " + std::to_string(stop));
  const files::TempDir saved;
  const Trace before = run.train(first, stop, saved.path());
  const Trace after = run.train(second, end, {}, *checkpoint::newest(saved.path()));

  std::vector<double> losses = before.losses, norms = before.grad_norms;
  losses.insert(losses.end(), after.losses.begin(), after.losses.end());
  norms.insert(norms.end(), after.grad_norms.begin(), after.grad_norms.end());
  EXPECT_EQ(losses, undisturbed.losses);
  EXPECT_EQ(norms, undisturbed.grad_norms);
  EXPECT_EQ(after.eval_losses, undisturbed.eval_losses);
  EXPECT_EQ(after.digest, undisturbed.digest);
}

TEST(Resume, AfterEachStepOfAnEpochAndMoreEqualsGoingOn) {
  // With 16 samples a step, the text has fewer than 20 batches per epoch: the stops are in
  // mid-epoch and after it.
  const TinyRun run;
  const Layout layout{.ranks = 2, .accumulation = 2, .micro_batch = 4};
  constexpr std::int64_t kSteps = 22;
  const Trace undisturbed = run.train(layout, kSteps);
  std::vector<double> losses, norms;
  Trace last;
  const files::TempDir saved;
  for (std::int64_t step = 1; step <= kSteps; ++step) {
    const auto before = checkpoint::newest(saved.path());
    last = run.train(layout, step, saved.path(), before.value_or(std::filesystem::path()));
    losses.insert(losses.end(), last.losses.begin(), last.losses.end());
    norms.insert(norms.end(), last.grad_norms.begin(), last.grad_norms.end());
  }

  EXPECT_EQ(losses, undisturbed.losses);
  EXPECT_EQ(norms, undisturbed.grad_norms);
  EXPECT_EQ(last.eval_losses, undisturbed.eval_losses);
  EXPECT_EQ(last.digest, undisturbed.digest);
}

TEST(Resume, InAnotherLayoutEqualsGoingOn) {
  const TinyRun run;
  const Layout two{.ranks = 2, .accumulation = 2, .micro_batch = 2},
      four{.ranks = 4, .accumulation = 1, .micro_batch = 2},
      one{.ranks = 1, .accumulation = 4, .micro_batch = 2, .stage = 0};
  const Trace undisturbed = run.train(two, 8);

  expect_resume_equals(run, undisturbed, 3, 8, two, four);
  expect_resume_equals(run, undisturbed, 4, 8, four, one);
  expect_resume_equals(run, undisturbed, 5, 8, one, two);
}

TEST(Resume, OfSeveralSourcesEqualsGoingOn) {
  TinyRun run;
  std::string text;
  for (int i = 0; i < 1200; ++i)
    text += static_cast<char>('a' + (i * i + i / 5) % 26);
  const std::string first = (run.folder() / "first.txt").string(),
                    second = (run.folder() / "second.txt").string();
  files::write_atomic(first, text);
  files::write_atomic(second, text.substr(700));
  run.set("data.train", R"([")" + first + R"(", ")" + second + R"("])")
      .set("data.sources",
           R"([{"path": ")" + first + R"(", "weight": 3}, {"path": ")" + second + R"("}])");
  const Layout two{.ranks = 2, .accumulation = 2, .micro_batch = 2},
      one{.ranks = 1, .accumulation = 4, .micro_batch = 2, .stage = 0};
  const Trace undisturbed = run.train(two, 12);

  expect_resume_equals(run, undisturbed, 5, 12, two, one);
}

TEST(Resume, WhileTheBatchGrowsEqualsGoingOn) {
  // Batches of 4 until 16 samples are consumed, of 8 until 32, then of 12; 16 tokens a sample.
  TinyRun run;
  run.set("rampup_batch_size", "[4, 4, 32]");
  const Layout two{.ranks = 2, .accumulation = 3}, one{.ranks = 1, .accumulation = 6};
  const Trace undisturbed = run.train(two, 9);

  EXPECT_EQ(undisturbed.batch_tokens,
            (std::vector<std::int64_t>{64, 64, 64, 64, 128, 128, 192, 192, 192}));
  for (const std::int64_t stop : {2, 4, 5, 7})
    expect_resume_equals(run, undisturbed, stop, 9, two, stop % 2 == 0 ? two : one);
}

TEST(Resume, InBf16EqualsGoingOn) {
  TinyRun run;
  run.set("bf16.enabled", "true");
  const Layout layout{.ranks = 2, .accumulation = 1};
  const Trace undisturbed = run.train(layout, 6);

  expect_resume_equals(run, undisturbed, 3, 6, layout, layout);
}

}  // namespace
}  // namespace tessera::test
