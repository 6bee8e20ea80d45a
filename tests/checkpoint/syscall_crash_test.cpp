// SPDX-License-Identifier: Apache-2.0
// labels: slow multiprocess
// timeout: 300
// A save on a real disk is killed at each of its system calls, and after half of each write.
#include "checkpoint/support.h"
#include "checkpoint/system_calls.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint::test {
namespace {

constexpr std::uint64_t kOld = 1, kNew = 2;
constexpr const char* kForbidden = "nobody may trace a process here (ptrace: EPERM or ENOSYS)";

/// A save, and the state before it.
struct Scene {
  std::string name;
  How how = How::Waiting;
  std::int64_t old_step = 100, step = 200;
  bool prunes = false;  ///< as training does, after the publication
};

const std::vector<Scene> kScenes = {
    {"Waiting", How::Waiting},
    {"BesideTraining", How::Background, 100, 200, true},
    {"BesideTrainingThatEnds", How::BackgroundThenWaiting, 100, 200, true},
    {"Replacing", How::Waiting, 100, 100},
    {"ReplacingBesideTraining", How::Background, 100, 100},
};

/// Returns whether a load returns what `wanted` holds.
bool holds(const fs::path& folder, const Held& wanted) {
  auto memory = wanted.memory;
  std::vector<PieceBytes> pieces = wanted.pieces;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::ranges::fill(memory[i], std::byte{0xEE});
    pieces[i].bytes = memory[i];
  }
  Checkpoint(folder).load(pieces);
  return memory == wanted.memory;
}

/// Kills a save of `model`, sharded by columns over `ranks` ranks, at each of its calls in turn,
/// and checks what remains. Returns the calls of the save that completed.
Traced expect_survival(const Scene& scene,
                       const std::vector<Spec>& model,
                       int ranks,
                       Effect effect) {
  const std::vector<Spec> old_model = small_model();
  const Held old_whole = held(old_model, ranges, 0, 1, true, kOld);
  const Held new_whole = held(model, ranges, 0, 1, true, kNew);
  std::vector<Held> shares;
  for (int rank = 0; rank < ranks; ++rank)
    shares.push_back(held(model, columns, rank, ranks, true, kNew));
  const bool replaces = scene.old_step == scene.step;

  for (int n = 0;; ++n) {
    const files::TempDir dir;
    const fs::path root = dir.path() / "checkpoints";
    save_model(root, scene.old_step, old_model, ranges, 2, kOld);

    const Traced traced = KilledAtCall::run(n, effect, [&] {
      on_ranks(ranks, [&](const Ranks& me) {
        std::function<void()> then;
        if (scene.prunes) then = [&] { prune(real_storage(), root, 1); };
        Held& mine = shares[static_cast<std::size_t>(me.rank)];  // of the child process
        save_rank(scene.how, real_storage(), root, scene.step, std::move(mine), me, then);
      });
    });
    if (traced.forbidden) return traced;
    const bool died = !traced.killed_at.empty();
    SCOPED_TRACE("killed at call " + std::to_string(n) + ": " + traced.killed_at);

    EXPECT_EQ(traced.code, 0);
    const auto found = list(root);
    EXPECT_FALSE(found.empty());
    bool old_there = false, new_there = false;
    for (const fs::path& folder : found) {
      EXPECT_NO_THROW(Checkpoint(folder).verify());
      const auto has = [&](const Held& wanted) {
        return Checkpoint(folder).has(wanted.specs.front().name) && holds(folder, wanted);
      };
      const bool is_new = *step_of(folder) == scene.step && (!replaces || !has(old_whole));
      EXPECT_TRUE(has(is_new ? new_whole : old_whole)) << folder;
      (is_new ? new_there : old_there) = true;
    }
    EXPECT_TRUE(new_there || (died && old_there));
    EXPECT_TRUE(old_there || replaces || scene.prunes);

    // Whatever remains, the next save succeeds and cleans up.
    const std::size_t whole = found.size();
    save_model(root, scene.step + 1, old_model, ranges, 1, kOld);
    EXPECT_TRUE(holds(*newest(root), old_whole));
    std::size_t left = 0;
    for (const auto& entry : fs::directory_iterator(root)) {
      const fs::path name = entry.path().filename();
      EXPECT_TRUE(name == "latest" || name.string().starts_with("step-")) << name;
      ++left;
    }
    EXPECT_EQ(left, whole + 2);  // the new checkpoint, and `latest`
    if (!died || ::testing::Test::HasFailure()) return traced;
  }
}

class EveryCall : public ::testing::TestWithParam<Scene> {};
INSTANTIATE_TEST_SUITE_P(, EveryCall, ::testing::ValuesIn(kScenes), [](const auto& info) {
  return info.param.name;
});

TEST_P(EveryCall, ThatASaveIsKilledAtLeavesTheOldOrTheNewCheckpointWhole) {
  const Traced whole = expect_survival(GetParam(), small_model(), 2, Effect::None);
  if (whole.forbidden) GTEST_SKIP() << kForbidden;

  // Two shards, two parts and the manifest, each created, reserved, written and synced; the folder
  // created, synced and renamed; the parts removed; the root synced; `latest`.
  EXPECT_GE(whole.calls, 5 * 4 + 3 + 2 + 1 + 4);
  for (const char* kind : {"create", "reserve", "write", "sync", "make folder", "remove", "rename"})
    EXPECT_TRUE(whole.kinds.contains(kind)) << kind;
}

TEST_P(EveryCall, ThatWritesAHalfOfItsBytesLeavesTheOldOrTheNewCheckpointWhole) {
  if (!kCanHalve) GTEST_SKIP() << "the registers of this machine are not known";
  const Traced whole = expect_survival(GetParam(), small_model(), 2, Effect::Half);
  if (whole.forbidden) GTEST_SKIP() << kForbidden;

  EXPECT_GE(whole.calls, 5 + 1);
}

bool takes_direct_writes() {
  const files::TempDir dir;
  const fs::path path = dir.path() / "direct";
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0666);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

/// Large enough to be written in blocks with direct I/O.
class EveryCallOfALargeFile : public ::testing::TestWithParam<Effect> {};
INSTANTIATE_TEST_SUITE_P(,
                         EveryCallOfALargeFile,
                         ::testing::Values(Effect::None, Effect::Half),
                         [](const auto& info) {
                           return info.param == Effect::None ? "Undone" : "HalfDone";
                         });

TEST_P(EveryCallOfALargeFile, LeavesTheOldOrTheNewCheckpointWhole) {
  if (GetParam() == Effect::Half && !kCanHalve)
    GTEST_SKIP() << "the registers of this machine are not known";
  const std::vector<Spec> large = {{"large", DType::F32, {1061, 4096}}, {"small", DType::F32, {7}}};
  ASSERT_GE(numel(large[0].shape) * 4, std::int64_t{16} << 20);

  const Traced whole = expect_survival({"", How::Background, 100, 200, true}, large, 1, GetParam());
  if (whole.forbidden) GTEST_SKIP() << kForbidden;

  EXPECT_GE(whole.calls, GetParam() == Effect::None ? 20 : 4 + 3);
  // Four blocks of 4 MiB and the rest, besides the writes of small files; not one write per MiB.
  const bool blocks = GetParam() == Effect::Half && takes_direct_writes();
  EXPECT_TRUE(!blocks || whole.calls < 16) << whole.calls;
}

/// Tests the method itself: a file that is overwritten in place is found damaged.
TEST(KilledAtEveryCall, FindsASaveThatWritesInPlace) {
  const std::string older(1000, 'a'), newer(1000, 'b');
  int broken = 0;
  for (const Effect effect : {Effect::None, Effect::Half}) {
    if (effect == Effect::Half && !kCanHalve) continue;
    bool died = true;
    for (int n = 0; died; ++n) {
      const files::TempDir dir;
      const fs::path path = dir.path() / "weights";
      spill(path, older);

      const Traced traced = KilledAtCall::run(n, effect, [&] {
        const int fd = ::open(path.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
        if (::write(fd, newer.data(), newer.size()) != std::ssize(newer)) ::_exit(1);
        if (::fsync(fd) != 0 || ::close(fd) != 0) ::_exit(1);
      });
      if (traced.forbidden) GTEST_SKIP() << kForbidden;

      died = !traced.killed_at.empty();
      EXPECT_EQ(traced.code, 0);
      const std::string left = slurp(path);
      if (left != older && left != newer) ++broken;
      EXPECT_TRUE(died || left == newer);
    }
  }
  EXPECT_EQ(broken, kCanHalve ? 2 : 1);  // truncated, and half written
}

}  // namespace
}  // namespace tessera::checkpoint::test
