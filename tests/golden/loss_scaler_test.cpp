// SPDX-License-Identifier: Apache-2.0
// Our loss scalers on recorded overflows against DeepSpeed's own, exactly.
#include <string>
#include <vector>

#include "golden.h"
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/loss_scale.h"

namespace tessera {
namespace {

/// The case's settings, which have the names of DeepSpeed's class, as options of our configuration.
optim::Fp16Options options_of(const json::Value& entry) {
  const json::Value& params = golden::at(entry, "params");
  optim::Fp16Options options;
  options.enabled = true;
  options.initial_scale = golden::at(params, "init_scale").as_double();
  options.loss_scale_factor = golden::at(params, "scale_factor").as_double();
  options.loss_scale_window = golden::at(params, "scale_window").as_integer();
  options.min_loss_scale = golden::at(params, "min_scale").as_double();
  options.hysteresis = golden::at(params, "delayed_shift").as_integer();
  options.consecutive_hysteresis = golden::at(params, "consecutive_hysteresis").as_bool();
  return options;
}

double patience(const optim::LossScaler& scaler) {
  return golden::at(scaler.state(), "hysteresis_left").as_double();
}

/// The recorded class was configured not to raise an error at the smallest scale; ours raises one
/// there, and only there, and continues.
void step(optim::LossScaler& scaler, bool overflow, double smallest) {
  const bool hopeless = overflow && scaler.scale() == smallest && patience(scaler) == 1;
  bool raised = false;
  try {
    scaler.update(overflow);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Numeric);
    raised = true;
  }
  EXPECT_EQ(raised, hopeless);
}

void replay_dynamic_scaler(const json::Value& entry) {
  const std::vector<double> overflow = golden::numbers(golden::at(entry, "overflow")),
                            scale = golden::numbers(golden::at(entry, "scale_after")),
                            left = golden::numbers(golden::at(entry, "hysteresis_left_after"));
  const optim::Fp16Options options = options_of(entry);
  for (const int stage : {1, 2, 3}) {
    optim::LossScaler scaler(options, stage);
    for (std::size_t i = 0; i < overflow.size(); ++i) {
      step(scaler, overflow[i] != 0, *options.min_loss_scale);
      ASSERT_EQ(scaler.scale(), scale.at(i)) << "stage " << stage << ", update " << i + 1;
      ASSERT_EQ(patience(scaler), left.at(i)) << "stage " << stage << ", update " << i + 1;
    }
  }
}

void replay_fp16_optimizer(const json::Value& entry) {
  const std::vector<double> overflow = golden::numbers(golden::at(entry, "overflow")),
                            scale =
                                golden::numbers(golden::at(entry, "fp16_optimizer_scale_after"));
  optim::LossScaler scaler(options_of(entry), 0);
  for (std::size_t i = 0; i < overflow.size(); ++i) {
    scaler.update(overflow[i] != 0);
    ASSERT_EQ(scaler.scale(), scale.at(i)) << "stage 0, update " << i + 1;
  }
}

TEST(GoldenLossScaler, ScalesFollowTheRecordedOnes) {
  int updates = 0;

  for (const auto& path : golden::cases("loss_scaler")) {
    const json::Value record = golden::read_json(path);
    for (const json::Value& entry : golden::at(record, "cases").items()) {
      SCOPED_TRACE(path.filename().string() + ", " + golden::at(entry, "name").as_string());
      replay_dynamic_scaler(entry);
      replay_fp16_optimizer(entry);
      updates += static_cast<int>(golden::at(entry, "overflow").items().size());
    }
  }

  EXPECT_GT(updates, 0);
}

}  // namespace
}  // namespace tessera
