// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A teacher beside the model that is trained: the same bits on any number of ranks and after a
// resume.
#include <string>
#include <vector>

#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// A student, and a teacher with the student's tokenizer that was trained for a while.
class Distillation : public ::testing::Test {
 protected:
  Distillation() {
    (void)teacher_run_.train({}, 4, teacher_.path());
    student_.set("distill.teacher", "\"" + checkpoint::newest(teacher_.path())->string() + "\"")
        .set("trainer.seed", "11");
  }
  static std::vector<float> values(const fs::path& root, const std::string& name) {
    const checkpoint::Checkpoint opened(*checkpoint::newest(root));
    for (const auto& tensor : opened.tensors()) {
      if (tensor.name == name) return opened.values(tensor);
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }

  TinyRun teacher_run_, student_;
  files::TempDir teacher_;
};

TEST_F(Distillation, GivesTheSameBitsInEveryLayoutAndAfterAResume) {
  for (const char* bf16 : {"false", "true"}) {
    student_.set("bf16.enabled", bf16);
    const Trace one = student_.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}}) {
      SCOPED_TRACE(bf16 + std::to_string(layout.ranks));
      expect_same_bits(one, student_.train(layout, 4));
    }
    const files::TempDir saved;
    (void)student_.train({.ranks = 2, .accumulation = 2, .stage = 2}, 2, saved.path());
    const Trace resumed = student_.train(
        {.ranks = 1, .accumulation = 4, .stage = 0}, 4, {}, *checkpoint::newest(saved.path()));
    EXPECT_EQ(resumed.digest, one.digest);
  }
}

TEST_F(Distillation, WorksInAPipelineToTheBit) {
  const Trace one = student_.train({.ranks = 1, .accumulation = 4}, 3);
  const Trace two = student_.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 3);

  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(two.grad_norms, one.grad_norms);
}

TEST_F(Distillation, FromItselfHasNoLossAndNoGradient) {
  // Dropout would make another model of the student.
  TinyRun run;
  run.set("model.dropout", "0.0");
  const files::TempDir first;
  (void)run.train({}, 3, first.path());
  run.set("distill.teacher", "\"" + checkpoint::newest(first.path())->string() + "\"")
      .set("model.from", "\"" + checkpoint::newest(first.path())->string() + "\"")
      .set("distill.alpha", "1.0");

  const Trace trace = run.train({}, 1);

  // fp32 rounding of log-softmax values over 256 and more tokens.
  EXPECT_NEAR(trace.losses.front(), 0.0, 1e-5);
  EXPECT_NEAR(trace.grad_norms.front(), 0.0, 1e-4);
}

TEST_F(Distillation, LearnsTheTeacher) {
  student_.set("distill.alpha", "1.0").set("optimizer.params.lr", "1e-2");

  const Trace trace = student_.train({}, 12);

  EXPECT_LT(trace.losses.back(), 0.7 * trace.losses.front());
}

TEST_F(Distillation, BeginsWithChosenLayersOfTheTeacher) {
  TinyRun run;
  run.set("distill",
          R"({"layers": [1], "teacher": ")" + checkpoint::newest(teacher_.path())->string() + "\"}")
      .set("model", "{}")
      .set("optimizer.params.lr", "0.0")
      .set("optimizer.params.weight_decay", "0.0");
  const files::TempDir saved;

  (void)run.train({.ranks = 2, .stage = 3}, 1, saved.path());

  for (const char* name : {"wte.weight", "wpe.weight", "ln_f.weight"})
    EXPECT_EQ(values(saved.path(), name), values(teacher_.path(), name)) << name;
  for (const char* name : {"attn.c_attn.weight", "mlp.c_proj.bias", "ln_2.weight"}) {
    EXPECT_EQ(values(saved.path(), std::string("h.0.") + name),
              values(teacher_.path(), std::string("h.1.") + name))
        << name;
  }
  EXPECT_FALSE(checkpoint::Checkpoint(*checkpoint::newest(saved.path())).has("h.1.ln_1.weight"));
}

TEST_F(Distillation, RefusesWhatItCannotDo) {
  const auto refusal = [](const TinyRun& run, const Layout& layout) -> std::string {
    try {
      (void)run.plan(layout);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(refusal(student_, {.ranks = 2, .tensor = 2}), ::testing::HasSubstr("share layers"));
  TinyRun run;
  run.set("distill.layers", "[0]");
  EXPECT_THAT(refusal(run, {}), ::testing::HasSubstr("without distill.teacher"));
  student_.set("distill.layers", "[1, 0]");
  EXPECT_THAT(refusal(student_, {}), ::testing::HasSubstr("ascending numbers"));
}

}  // namespace
}  // namespace tessera::test
