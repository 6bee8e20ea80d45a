// SPDX-License-Identifier: Apache-2.0
// Hosts that share no disk: each saves a part, and reads its own elements.
#include "tessera/checkpoint/node_parts.h"

#include <algorithm>

#include "checkpoint/nodes.h"
#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/folders.h"
#include "tessera/checkpoint/parts.h"
#include "tessera/checkpoint/streamed_save.h"

namespace tessera::checkpoint::test {
namespace {

/// Copies the contents of the folders of all nodes into one folder.
void gather(const std::vector<fs::path>& parts, const fs::path& to) {
  fs::create_directory(to);
  for (const fs::path& part : parts) {
    for (const auto& entry : fs::directory_iterator(part))
      fs::copy_file(entry.path(), to / entry.path().filename());
  }
}

class SaveOfNodes : public ::testing::TestWithParam<How> {};
INSTANTIATE_TEST_SUITE_P(,
                         SaveOfNodes,
                         ::testing::Values(How::Waiting,
                                           How::Background,
                                           How::BackgroundThenWaiting),
                         name_of_how);

TEST_P(SaveOfNodes, WritesOnTheDiskOfEachItsOwnPartAlone) {
  const Nodes nodes;
  std::vector<int> pruned;
  std::mutex mutex;
  WatchedStorage disk;
  nodes.save(disk, 2, 0, GetParam(), [&](int node) {
    const std::lock_guard lock(mutex);
    pruned.push_back(node);
  });

  EXPECT_EQ(names_in(nodes.part(0, 2)),
            (std::vector<std::string>{
                "node-00000.json", "rank-00000.safetensors", "rank-00001.safetensors"}));
  EXPECT_EQ(names_in(nodes.part(1, 2)),
            (std::vector<std::string>{
                "node-00001.json", "rank-00002.safetensors", "rank-00003.safetensors"}));
  for (int node = 0; node < kNodes; ++node) {
    EXPECT_EQ(names_in(nodes.root(node)), (std::vector<std::string>{"latest", "step-00000002"}));
    EXPECT_EQ(list(nodes.root(node)), std::vector<fs::path>{nodes.part(node, 2)});
  }
  if (GetParam() != How::Waiting) {
    std::sort(pruned.begin(), pruned.end());
    EXPECT_EQ(pruned, (std::vector<int>{0, 1}));
  }
}

TEST_P(SaveOfNodes, LoadsOnEachWhatItsRanksSaved) {
  const Nodes nodes;
  nodes.save(2, kNewSeed, GetParam());

  for (int rank = 0; rank < kNodeRanks; ++rank) {
    const fs::path part = nodes.part(rank / 2, 2);
    Checkpoint(part).check_files();
    Checkpoint(part).verify();
    EXPECT_TRUE(own_pieces_load(nodes, part, rank, kNewSeed)) << rank;
  }
}

TEST(NodeParts, NameTheMissingPartToTheReaderThatNeedsIt) {
  const Nodes nodes;
  nodes.save(2);
  const std::vector<Spec> of_node_1 = {{"scale", DType::F32, {}}};  // its only element is on rank 3

  for (const Error& error : {error_of([&] { loads_exactly(nodes.part(0, 2)); }),
                             error_of([&] { loads_exactly(nodes.part(0, 2), of_node_1); }),
                             error_of([&] { Checkpoint(nodes.part(0, 2)).require_whole(); }),
                             error_of([&] { (void)Checkpoint(nodes.part(0, 2)).digest(); }),
                             error_of([&] { open_parts(nodes.part(0, 2), {}); })}) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    EXPECT_NE(std::string(error.what()).find("node-00001.json"), std::string::npos) << error.text();
    EXPECT_NE(error.fix().find("tessera checkpoint merge"), std::string::npos) << error.fix();
  }
}

TEST(NodeParts, InOneFolderAreTheCheckpoint) {
  const Nodes nodes;
  nodes.save(2);
  const fs::path whole = save_model(nodes.path() / "whole", 2, small_model(), ranges, kNodeRanks);
  const fs::path folder = nodes.path() / "together";
  gather({nodes.part(0, 2), nodes.part(1, 2)}, folder);

  Checkpoint(folder).require_whole();
  Checkpoint(folder).verify();

  EXPECT_EQ(Checkpoint(folder).digest(), Checkpoint(whole).digest());
  EXPECT_TRUE(loads_exactly(folder, small_model(), columns, 3));
}

TEST(NodeParts, AreMergedInAnyOrder) {
  const Nodes nodes;
  nodes.save(2);
  for (const int first : {0, 1}) {
    const auto joined = std::make_shared<const Checkpoint>(
        open_parts(nodes.part(first, 2), {nodes.part(1 - first, 2)}));
    const fs::path merged = nodes.path() / ("merged" + std::to_string(first));
    fs::create_directory(merged);

    write_checkpoint(merged, joined->meta(), tensors_of(joined));

    EXPECT_TRUE(loads_exactly(merged));
    EXPECT_EQ(Checkpoint(merged).meta().extra, meta_at(2).extra);
    EXPECT_EQ(Checkpoint(merged).save_id(), 0U);
  }
}

TEST(NodeParts, OfDifferentSavesAreRefusedByName) {
  const Nodes one, other;
  one.save(2);
  other.save(2);  // the same values, but another save
  gather({one.part(0, 2), other.part(1, 2)}, one.path() / "mixed");

  for (const Error& error : {error_of([&] { open_parts(one.part(0, 2), {other.part(1, 2)}); }),
                             error_of([&] { Checkpoint(one.path() / "mixed"); })}) {
    EXPECT_EQ(error.kind(), Error::Kind::Format);
    for (const char* word : {"node-00000.json", "node-00001.json", "different checkpoints"})
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.text();
  }
}

TEST(NodeParts, ThatAreDamagedAreNamed) {
  const Nodes nodes;
  nodes.save(2);
  const fs::path manifest = nodes.part(1, 2) / "node-00001.json";
  const std::string good = slurp(manifest);
  std::string bad = good;
  bad[bad.size() / 2] = static_cast<char>(bad[bad.size() / 2] ^ 1);
  spill(manifest, bad);
  const Error damaged = error_of([&] { Checkpoint(nodes.part(1, 2)); });
  spill(manifest, good);
  fs::rename(manifest, nodes.part(1, 2) / "node-00000.json");
  const Error renamed = error_of([&] { Checkpoint(nodes.part(1, 2)); });
  fs::rename(nodes.part(1, 2) / "node-00000.json", nodes.part(1, 2) / "manifest.json");
  const Error whole = error_of([&] { Checkpoint(nodes.part(1, 2)); });

  EXPECT_NE(std::string(damaged.what()).find("node-00001.json"), std::string::npos);
  EXPECT_NE(std::string(renamed.what()).find("its contents do not match its name"),
            std::string::npos);
  EXPECT_NE(std::string(whole.what()).find("manifest of a part, not of the whole checkpoint"),
            std::string::npos);
}

TEST(NodeParts, GoOnFromTheNewestThatAllHave) {
  const Nodes nodes;
  EXPECT_EQ(common_save(nodes).first, -1);
  for (const int step : {1, 2, 3, 4})
    nodes.save(step, step == 2 ? kNewSeed : kOldSeed);
  fs::remove_all(nodes.part(0, 4));
  fs::remove_all(nodes.part(1, 3));

  EXPECT_EQ(common_save(nodes), std::pair(std::int64_t{2}, kNewSeed));

  const Nodes later;
  later.save(4, kNewSeed);
  fs::copy(later.part(0, 4), nodes.part(0, 4));
  EXPECT_EQ(common_save(nodes), std::pair(std::int64_t{2}, kNewSeed))
      << "of step 4 there are two saves";
}

TEST(NodeParts, OfDifferentSavesAreNotLoadedTogether) {
  const Nodes nodes;
  nodes.save(1);
  nodes.save(2);
  std::vector<std::string> said(kNodeRanks);

  on_nodes([&](const Ranks& me) {
    const Checkpoint opened(nodes.part(me.node, me.node == 0 ? 2 : 1));
    said[static_cast<std::size_t>(me.rank)] =
        error_of([&] { require_one_save(opened, me); }).text();
  });

  EXPECT_NE(said[0].find("another save"), std::string::npos) << said[0];
  EXPECT_EQ(std::count(said.begin(), said.end(), said[0]), kNodeRanks);
}

TEST(NodeParts, InAFolderThatNodesShareAreRefusedAndThePreviousStays) {
  const files::TempDir dir;
  save_model(dir.path(), 1, small_model(), ranges, 1, kOldSeed);
  std::vector<std::string> said(kNodeRanks);

  on_nodes([&](const Ranks& me) {
    const Held mine = held(small_model(), ranges, me.rank, kNodeRanks, true, kNewSeed);
    said[static_cast<std::size_t>(me.rank)] =
        error_of([&] { save(dir.path(), meta_at(2), mine.pieces, me); }).text();
  });

  EXPECT_EQ(std::count(said.begin(), said.end(), said[0]), kNodeRanks);
  EXPECT_NE(said[0].find("step-00000002"), std::string::npos) << said[0];
  EXPECT_EQ(names_in(dir.path()), (std::vector<std::string>{"latest", "step-00000001"}));
  EXPECT_TRUE(loads_exactly(dir.path() / "step-00000001", small_model(), ranges, 1, kOldSeed));
}

}  // namespace
}  // namespace tessera::checkpoint::test
