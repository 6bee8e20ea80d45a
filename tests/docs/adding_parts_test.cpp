// SPDX-License-Identifier: Apache-2.0
// The parts that pages of docs/adding/ build do what the pages say.
#include "adding_parts.inc"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/host_world.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/ops/backend.h"

namespace tessera {
namespace {

using testing::Contains;
using testing::HasSubstr;

TEST(AddedFeedForward, IsTheSumOfTwoAndCountsBoth) {
  const auto mlp = [](const std::string& name, const std::string& activation) {
    return models::MlpSpec{.hidden_size = 8,
                           .ffn_hidden_size = 12,
                           .input_name = name + ".in",
                           .output_name = name + ".out",
                           .activation = activation};
  };
  const models::TwoMlpsSpec spec = {mlp("first", "silu"), mlp("second", "relu")};
  models::TwoMlps both(spec);
  models::Mlp first(spec.first), second(spec.second);
  nn::Params params("h.0"), of_first("h.0"), of_second("h.0");
  both.declare(params);
  first.declare(of_first);
  second.declare(of_second);
  std::int64_t declared = 0;
  std::vector<at::Tensor> values;
  for (const auto& param : params.list()) {
    declared += param->info().numel();
    values.push_back(at::randn(param->info().shape));
    param->attach(values.back());
  }
  std::size_t next = 0;
  for (const nn::Params* const half : {&of_first, &of_second}) {
    for (const auto& param : half->list())
      param->attach(values[next++]);
  }
  nn::StepContext context(nn::Mode::Eval, 0);
  context.block_name = "h.0";
  std::vector<nn::Term> terms;
  const at::Tensor h = at::randn({2, 5, 8});

  const at::Tensor sum = both(h, context, terms);

  EXPECT_TRUE(at::equal(sum, first(h, context, terms) + second(h, context, terms)));
  EXPECT_EQ(both.size().total, declared);
  EXPECT_EQ(models::size_of(spec).flops_a_token, both.size().flops_a_token);
  EXPECT_GT(both.size().flops_a_token, 0);
}

TEST(AddedLink, CarriesCollectivesBetweenHosts) {
  EXPECT_THAT(comm::link_choices(), Contains("folder"));
  const files::TempDir folder;
  const auto hosts = std::make_shared<test::TestHosts>(std::vector<int>{1, 1});
  std::vector<std::vector<float>> sums(2);
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto world =
            hosts->world_of(rank,
                            mesh::Mesh::data_parallel(2),
                            hosts,
                            std::make_unique<transports::FolderLink>(rank, 2, folder.path()));
        std::vector<float> values(3000, static_cast<float>(rank) + 0.25F);
        world->transport()
            .all_reduce(world->everyone(),
                        {values.data(), values.size(), DType::F32, {}},
                        comm::Op::Sum,
                        TESSERA_HERE("sum"))
            ->wait();
        sums[static_cast<std::size_t>(rank)] = std::move(values);
      });
    }
  }

  EXPECT_EQ(sums[0], std::vector<float>(3000, 1.5F));
  EXPECT_EQ(sums[1], sums[0]);
  EXPECT_EQ(hosts->bytes_sent(), 0U) << "nothing went over the sockets of the test";
}

TEST(AddedLink, IsRefusedBeforeRanksStartWithoutItsFolder) {
  ::unsetenv("TESSERA_LINK_FOLDER");
  try {
    comm::check_link("folder");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.text(), HasSubstr("export TESSERA_LINK_FOLDER=/mnt/shared/messages"));
  }
}

TEST(AddedTransport, IsOneOfThoseForItsKindOfMemory) {
  ASSERT_THAT(comm::transports().names(), Contains("plugin_solo"));
  EXPECT_EQ(comm::transports().get("plugin_solo").moves, DeviceKind::Plugin);
}

TEST(AddedTier, KeepsItsBytesAndThoseOfASnapshot) {
  const auto tier = memory::tiers().get("vector")({.block_bytes = 16});
  const auto file = tier->open("states", 64);
  std::vector<std::byte> written(16, std::byte{7}), read(16);
  file->wait(file->write(32, written));
  const auto snapshot = file->snapshot();
  file->wait(file->write(32, std::vector<std::byte>(16, std::byte{9})));
  file->wait(file->read(32, read));

  EXPECT_EQ(read, std::vector<std::byte>(16, std::byte{9}));
  snapshot->read(32, read);
  EXPECT_EQ(read, written);
  EXPECT_EQ(tier->use().written_bytes, 32);
}

TEST(AddedOperation, CountsOnMetaWhatItDoesOnACpu) {
  const auto work_of = [](const at::TensorOptions& on) {
    const at::Tensor x = at::ones({3, 4}, on);
    const ops::OpLog log;
    const at::Tensor y = ops::doubled(x);
    EXPECT_EQ(y.sizes(), at::IntArrayRef({3, 4}));
    EXPECT_EQ(log.rows().size(), 1U);
    return log.rows().front();
  };
  const ops::OpRow cpu = work_of(at::kFloat),
                   meta = work_of(at::device(at::kMeta).dtype(at::kFloat));

  EXPECT_TRUE(at::equal(ops::doubled(at::ones({2})), at::full({2}, 2.0F)));
  EXPECT_EQ(cpu.flops, 12);
  EXPECT_EQ(meta.flops, cpu.flops);
  EXPECT_EQ(meta.bytes, cpu.bytes);
}

TEST(AddedMachine, PricesMessagesAndUpdatesOfAPipeline) {
  const std::vector<parallel::BlockWork> work(4);
  const parallel::StageLayout layout = {.stages = 2, .bounds = {0, 2, 4}};
  const auto& schedule = parallel::pipeline_schedules().get("1f1b");
  const auto seconds = [&](std::int64_t flow, std::int64_t sharded) {
    return parallel::step_seconds(work, layout, schedule, /*micros=*/4, flow, sharded);
  };

  EXPECT_GT(seconds(0, 1'000'000), 0.0);
  // 16 bytes of master and states are read and written for each element, at 20 GB/s.
  EXPECT_GT(seconds(0, 1'000'000'000) - seconds(0, 0), 1.0);
  EXPECT_GT(seconds(1'000'000'000, 0), seconds(0, 0)) << "messages take time";
}

TEST(AddedDevice, IsListedAndSaysWhyThereIsNone) {
  ASSERT_THAT(memory::devices().names(), Contains("mydevice"));
  try {
    (void)memory::device_of_rank("mydevice", 0, 1);
    ADD_FAILURE() << "there is no such device";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Environment);
    EXPECT_THAT(error.text(), HasSubstr("its library is not loaded"));
  }
}

TEST(AddedBackend, RunsOperationsThatItDoesNotOverrideAsAtenDoes) {
  const ops::Backend& added = *ops::backends().get("mydevice");
  EXPECT_TRUE(added.runs_on(c10::DeviceType::PrivateUse1));
  EXPECT_FALSE(added.runs_on(c10::DeviceType::CPU));
  const at::Tensor x = at::randn({3, 4});
  at::Tensor mine = at::empty_like(x), atens = at::empty_like(x);

  added.activate(x, ops::Activation::Gelu, mine);
  ops::backends().get("aten")->activate(x, ops::Activation::Gelu, atens);

  EXPECT_TRUE(at::equal(mine, atens));
}

}  // namespace
}  // namespace tessera
