// SPDX-License-Identifier: Apache-2.0
// Tensors that are joined from pieces: the claimed sizes of pieces are checked, never trusted.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "interop/foreign_support.h"
#include "interop/torch/torch_bytes.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/torch/file.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
namespace op = test::op;

constexpr std::int64_t kHuge = (std::int64_t{1} << 60) - 1;

/// Returns `count` equal elements, as expand() represents them.
std::string expanded(std::int64_t count) {
  return op::tensor(op::storage("FloatStorage", "0", 1), 0, {count}, {0});
}

class Joined : public test::ForeignCheckpoints {
 protected:
  Weight weight(const std::string& name, const std::string& tensor, const std::string& bytes) {
    files::write_atomic(path(name),
                        test::torch_zip(test::pickle_of(op::dict({{name, tensor}})), {bytes}));
    return open_torch_file(path(name)).front();
  }
  Weight eight(const std::string& name) {
    return weight(
        name, op::tensor(op::storage("FloatStorage", "0", 8), 0, {8}, {1}), std::string(32, 'x'));
  }
};

TEST_F(Joined, OfMoreElementsThanItsShapeIsRefusedBeforeTheSumOverflows) {
  const Weight part = eight("part");
  // 2^64 + 8 elements in total: as many as the shape has, modulo 2^64. Reading them would exceed
  // the end.
  Weight wide = part;
  wide.shape = {kHuge};
  std::vector<interop::Run> runs(16, interop::Run{wide, 0, kHuge});
  runs.push_back({part, 0, 8});
  runs.push_back({part, 0, 8});
  runs.push_back({part, 0, 8});

  const Error error = test::error_of([&] { join("w", {8}, runs, "here"); });

  EXPECT_EQ(error.kind(), Error::Kind::Format);
  EXPECT_NE(error.text().find("\"w\" has more than the 8 elements of [8]"), std::string::npos)
      << error.text();
  EXPECT_EQ(join("w", {16}, {{part, 0, 8}, {part, 0, 8}}, "here").bytes(), 64U);
}

TEST_F(Joined, OfAViewThatRepeatsItsElementsIsRefused) {
  const Weight one = weight("one", expanded(4), std::string(4, 'x'));

  const Error error = test::error_of([&] { join("w", {4}, {{one, 0, 4}}, "here"); });

  EXPECT_NE(error.text().find("\"one\" is a view that repeats its elements"), std::string::npos)
      << error.text();
}

TEST_F(Joined, OfDeepSpeedsFlatGroupsThatClaimHugeSizesIsRefused) {
  constexpr int kRanks = 17;
  const std::string folder = "ds/global_step1";
  fs::create_directories(path(folder));
  files::write_atomic(path("ds/latest"), "global_step1");
  const std::string size = op::global("torch", "Size") + op::tuple({op::sizes({8})}) + op::kCall;
  files::write_atomic(
      path(folder + "/mp_rank_00_model_states.pt"),
      test::torch_zip(test::pickle_of(op::dict(
          {{"module", op::kDict}, {"param_shapes", op::list_of({op::dict({{"w", size}})})}}))));
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::int64_t count = rank + 1 < kRanks ? kHuge : 24;
    const std::string place = op::dict({{"start", op::integer(0)}, {"numel", op::integer(count)}});
    const std::string state = op::dict(
        {{"single_partition_of_fp32_groups", op::list_of({expanded(count)})},
         {"param_slice_mappings", op::list_of({op::dict({{"w", op::dict({{"state", place}})}})})},
         {"partition_count", op::integer(kRanks)}});
    files::write_atomic(
        path(fmt::format("{}/zero_pp_rank_{}_mp_rank_00_optim_states.pt", folder, rank)),
        test::torch_zip(test::pickle_of(op::dict({{"optimizer_state_dict", state}})),
                        {std::string(4, 'x')}));
  }

  refused(path("ds"), "is a view that repeats its elements");
}

}  // namespace
}  // namespace tessera::interop
