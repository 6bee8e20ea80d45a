// SPDX-License-Identifier: Apache-2.0
#include "tessera/predict/described_machine.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"

namespace tessera::predict {
namespace {

using ::testing::HasSubstr;

constexpr const char* kSmall = R"({
  "memory_bytes": 1e9, "flops_per_s": {"fp32": 1e12},
  "efficiency": {"large_product": [[1e6, 0.2], [1e8, 0.6]]},
  "memory": {"bytes_per_s": 1e11}, "in_host": {"bytes_per_s": 1e10, "latency_s": 1e-6}
})";

json::Value without(const std::string& key) {
  json::Value out = json::parse(kSmall, "machine.json");
  std::erase_if(out.members(), [&](const auto& member) { return member.first == key; });
  return out;
}

std::string error_of(const json::Value& source) {
  try {
    (void)read_machine(source);
  } catch (const Error& error) {
    return error.text();
  }
  return "";
}

TEST(Curve, IsLinearInTheLogarithmOfTheSizeAndConstantOutside) {
  const Curve curve =
      read_machine(json::parse(kSmall, "m")).efficiency.at(ShapeClass::LargeProduct);
  EXPECT_DOUBLE_EQ(curve.at(1), 0.2);
  EXPECT_DOUBLE_EQ(curve.at(1e6), 0.2);
  EXPECT_NEAR(curve.at(1e7), 0.4, 1e-12);
  EXPECT_DOUBLE_EQ(curve.at(1e12), 0.6);
  EXPECT_DOUBLE_EQ(Curve().at(5), 1);
}

TEST(DescribedMachine, NamesAMissingRateAndTheCommandThatMeasuresIt) {
  for (const char* key : {"memory_bytes", "flops_per_s", "efficiency", "memory", "in_host"}) {
    const std::string error = error_of(without(key));
    EXPECT_THAT(error, HasSubstr(key));
    EXPECT_THAT(error, HasSubstr("tessera bench machine"));
  }
}

TEST(DescribedMachine, RefusesUnknownKeysAndWrongValuesWithTheirPlace) {
  json::Value wrong = json::parse(kSmall, "machine.json");
  wrong["overlap_taxes"] = json::Value::number(0.1);
  EXPECT_THAT(error_of(wrong), HasSubstr("overlap_tax"));
  for (const char* text : {R"("efficiency": {"large_product": 1.5})",
                           R"("efficiency": {"large_product": [[10, 0.5], [1, 0.6]]})",
                           R"("efficiency": {"large_product": []})",
                           R"("memory": {"bytes_per_s": -1})",
                           R"("collectives": "tree")",
                           R"("flops_per_s": {"fp128": 1})",
                           R"("tiers": {"disk": {"read": {"bytes_per_s": 1}}})"}) {
    json::Value source = json::parse(kSmall, "machine.json");
    const json::Value change = json::parse(std::string("{") + text + "}", "change.json");
    source[change.members()[0].first] = change.members()[0].second;
    EXPECT_THAT(error_of(source), HasSubstr("change.json:1:")) << text;
  }
}

TEST(DescribedMachine, EveryOneThatShipsCanBeReadAndWritten) {
  const std::vector<std::string> names = machine_names();
  for (const char* name : {"a100-40gb", "a100-80gb", "h100", "h200", "v100-32gb", "2080ti"})
    EXPECT_THAT(names, ::testing::Contains(name));
  for (const std::string& name : names) {
    const DescribedMachine machine = find_machine(name);
    EXPECT_FALSE(machine.title.empty()) << name;
    EXPECT_FALSE(machine.source.empty()) << name;
    if (name.starts_with("cpu-")) {
      EXPECT_GE(machine.cores, 1) << name
                                  << ": the rates of a CPU are shared by the ranks of a host";
      EXPECT_EQ(machine.collectives, Collectives::Own) << name;
      EXPECT_GT(machine.rates.in_host.bytes_per_s, 0) << name;
      EXPECT_GT(machine.peak.at(DType::F32), machine.rates.memory.bytes_per_s / 4)
          << name << ": it computes faster than it reads numbers";
    }
    const json::Value written = write_machine(machine);
    EXPECT_EQ(write_machine(read_machine(written)), written) << name;
  }
}

TEST(DescribedMachine, OfAUserIsFoundByItsFileAndInItsFolder) {
  const files::TempDir folder;
  files::write_atomic(folder.path() / "mine.json", kSmall);
  files::write_atomic(folder.path() / "faster.json",
                      R"({"extends": "mine", "flops_per_s": {"fp32": 5e12}})");
  ::setenv("TESSERA_MACHINES", folder.path().c_str(), 1);

  EXPECT_DOUBLE_EQ(find_machine((folder.path() / "mine.json").string()).peak.at(DType::F32), 1e12);
  EXPECT_DOUBLE_EQ(find_machine("faster").peak.at(DType::F32), 5e12);
  EXPECT_DOUBLE_EQ(find_machine("faster").rates.memory.bytes_per_s, 1e11);

  ::unsetenv("TESSERA_MACHINES");
  EXPECT_THROW((void)find_machine("faster"), Error);
}

TEST(Network, IsOfARankOrSharedByTheRanksOfAHost) {
  DescribedMachine machine = read_machine(json::parse(kSmall, "m"));
  machine.rates.host_ranks = 8;
  EXPECT_DOUBLE_EQ(with_network(machine, find_network("ib400")).rates.between_hosts.bytes_per_s,
                   45e9);
  EXPECT_DOUBLE_EQ(with_network(machine, find_network("eth25")).rates.between_hosts.bytes_per_s,
                   2.8e9 / 8);
  EXPECT_DOUBLE_EQ(find_network("200G").rate.bytes_per_s, 0.9 * 25e9);
  for (const char* name : {"ib40", "G", "-5G", "nanG"})
    EXPECT_THROW((void)find_network(name), Error) << name;
}

TEST(DescribedMachine, ARankWithFewerThreadsHasItsShareOfTheCores) {
  DescribedMachine machine = read_machine(json::parse(kSmall, "m"));
  EXPECT_DOUBLE_EQ(with_threads(machine, 1).peak.at(DType::F32), 1e12) << "a device";
  machine.cores = 4;
  EXPECT_DOUBLE_EQ(with_threads(machine, 1).peak.at(DType::F32), 0.25e12);
  EXPECT_DOUBLE_EQ(with_threads(machine, 8).rates.memory.bytes_per_s, 1e11);
}

TEST(DescribedMachine, ARankHasTheRatesThatWereMeasuredWithTheNearestNumberOfThreads) {
  json::Value source = json::parse(kSmall, "m");
  source["cores"] = json::Value::integer(16);
  source["threads"] = json::parse(
      R"({"1": {"flops_per_s": {"fp32": 1e11}, "efficiency": {"fp32": {"large_product": 0.9}},
                "memory": {"bytes_per_s": 2e10}, "op_overhead_s": 1e-7,
                "memory_efficiency": {"others": 0.5, "rows": [[1e3, 0.25], [1e6, 4]]}}})",
      "threads.json");
  const DescribedMachine machine = read_machine(source);

  const DescribedMachine one = with_threads(machine, 1), two = with_threads(machine, 2),
                         eight = with_threads(machine, 8);

  EXPECT_DOUBLE_EQ(one.peak.at(DType::F32), 1e11);
  EXPECT_DOUBLE_EQ(one.rates.memory.bytes_per_s, 2e10);
  EXPECT_DOUBLE_EQ(one.rates.op_overhead_s, 1e-7);
  EXPECT_DOUBLE_EQ(one.shares(DType::F32, ShapeClass::LargeProduct)->at(1e9), 0.9);
  EXPECT_EQ(one.shares(DType::F32, ShapeClass::Attention), nullptr) << "limited by memory";
  EXPECT_DOUBLE_EQ(one.memory_shares(ShapeClass::Rows).at(1e6), 4) << "caches are faster";
  EXPECT_DOUBLE_EQ(one.memory_shares(ShapeClass::Update).at(1e6), 0.5);
  EXPECT_DOUBLE_EQ(two.peak.at(DType::F32), 2e11) << "2 is nearer to 1 than to 16";
  EXPECT_DOUBLE_EQ(two.rates.op_overhead_s, 1e-7);
  EXPECT_DOUBLE_EQ(eight.peak.at(DType::F32), 1e12 / 2) << "half of the cores";
  EXPECT_EQ(write_machine(read_machine(write_machine(machine))), write_machine(machine));

  for (const char* threads : {R"({"16": {}})",
                              R"({"0": {}})",
                              R"({"two": {}})",
                              R"([1])",
                              R"({"1": {"flops_per_s": {"fp32": 1}}})"}) {
    source["threads"] = json::parse(threads, "threads.json");
    EXPECT_THAT(error_of(source), HasSubstr("threads")) << threads;
  }
}

}  // namespace
}  // namespace tessera::predict
