// SPDX-License-Identifier: Apache-2.0
// Power that fails in the middle of a save. A disk is modelled that keeps only what was synced, and
// of the rest anything: data that vanish or turn to zeros, names that are changed ahead of the data
// or in one folder and not in another. Every such state is built and looked at.
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

#include "checkpoint/support.h"
#include <gtest/gtest.h>

#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint::test {
namespace {

/// A file or folder and what happened to it, each change with its place in the order of all.
struct Node {
  struct Change {  ///< of a folder: `name` stands for `node` from now on, or for nothing
    std::size_t when;
    std::vector<std::pair<std::string, std::shared_ptr<Node>>> names;
  };
  struct Data {
    std::size_t when;
    std::string bytes;
  };
  bool folder = false;
  std::uint64_t reserved = 0;
  std::vector<Change> changes;
  std::vector<Data> data;
  std::vector<std::size_t> syncs;
  std::map<std::string, std::shared_ptr<Node>> now;

  /// The last sync before `end`; nothing before it can be lost.
  [[nodiscard]] std::size_t synced(std::size_t end) const {
    std::size_t last = 0;
    for (const std::size_t when : syncs)
      last = when < end ? when : last;
    return last;
  }
};
using NodePtr = std::shared_ptr<Node>;

/// A real disk that remembers what was done to it under `root`.
class RememberedDisk final : public Storage {
 public:
  explicit RememberedDisk(fs::path root) : root_(std::move(root)) { top->folder = true; }
  const NodePtr top = std::make_shared<Node>();
  [[nodiscard]] std::size_t changes() const { return clock_; }

  void make_folder(const fs::path& path) override {
    const std::lock_guard lock(mutex_);
    real_storage().make_folder(path);
    const auto made = std::make_shared<Node>();
    made->folder = true;
    change(parent(path), {{path.filename(), made}});
  }
  std::unique_ptr<Output> create(const fs::path& path, std::uint64_t bytes) override {
    const std::lock_guard lock(mutex_);
    auto real = real_storage().create(path, bytes);
    const auto made = std::make_shared<Node>();
    made->reserved = bytes;
    change(parent(path), {{path.filename(), made}});
    return std::make_unique<Written>(*this, made, std::move(real));
  }
  void sync_folder(const fs::path& path) override {
    const std::lock_guard lock(mutex_);
    if (const NodePtr node = find(path)) node->syncs.push_back(++clock_);
  }
  void rename(const fs::path& from, const fs::path& to) override {
    const std::lock_guard lock(mutex_);
    real_storage().rename(from, to);
    ASSERT_EQ(from.parent_path(), to.parent_path());
    change(parent(to), {{from.filename(), nullptr}, {to.filename(), find(from)}});
  }
  bool exchange(const fs::path& a, const fs::path& b) override {
    const std::lock_guard lock(mutex_);
    if (!real_storage().exchange(a, b)) return false;
    change(parent(a), {{a.filename(), find(b)}, {b.filename(), find(a)}});
    return true;
  }
  void remove(const fs::path& path) override {
    const std::lock_guard lock(mutex_);
    if (const NodePtr node = find(path)) forget(path, node);
    real_storage().remove(path);
  }
  void write_atomic(const fs::path& path, std::string_view content) override {
    const std::lock_guard lock(mutex_);
    real_storage().write_atomic(path, content);
    const auto made = std::make_shared<Node>();
    made->data.push_back({++clock_, std::string(content)});
    made->syncs.push_back(++clock_);
    change(parent(path), {{path.filename(), made}});
    parent(path)->syncs.push_back(++clock_);
  }

 private:
  class Written final : public Output {
   public:
    Written(RememberedDisk& disk, NodePtr node, std::unique_ptr<Output> real)
        : disk_(disk), node_(std::move(node)), real_(std::move(real)) {}
    void append(std::span<const std::byte> bytes) override {
      const std::lock_guard lock(disk_.mutex_);
      real_->append(bytes);
      node_->data.push_back(
          {++disk_.clock_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}});
    }
    void sync() override {
      const std::lock_guard lock(disk_.mutex_);
      node_->syncs.push_back(++disk_.clock_);
    }

   private:
    RememberedDisk& disk_;
    NodePtr node_;
    std::unique_ptr<Output> real_;
  };

  NodePtr find(const fs::path& path) const {
    NodePtr at = top;
    for (const auto& part : path.lexically_relative(root_)) {
      if (part == ".") continue;
      const auto found = at->now.find(part);
      if (found == at->now.end()) return nullptr;
      at = found->second;
    }
    return at;
  }
  NodePtr parent(const fs::path& path) const { return find(path.parent_path()); }
  void change(const NodePtr& folder, std::vector<std::pair<std::string, NodePtr>> names) {
    for (const auto& [name, node] : names) {
      if (node == nullptr) {
        folder->now.erase(name);
      } else {
        folder->now[name] = node;
      }
    }
    folder->changes.push_back({++clock_, std::move(names)});
  }
  /// Entry by entry, as the file system does it.
  void forget(const fs::path& path, const NodePtr& node) {
    const auto inside = node->now;
    for (const auto& [name, child] : inside)
      forget(path / name, child);
    change(parent(path), {{path.filename(), nullptr}});
  }

  fs::path root_;
  std::mutex mutex_;
  std::size_t clock_ = 0;
};

enum class Unsynced { Kept, Gone, Zeros };

/// What of the changes before `when` reached the disk.
struct State {
  std::size_t when = 0;
  Unsynced data = Unsynced::Gone;
  std::size_t top_until = 0;  ///< names of the top folder: changes before this moment
  bool other_names = false;   ///< of the other folders: all of them, or those that were synced
};

std::string content(const Node& file, const State& state) {
  const std::size_t synced = file.synced(state.when);
  const std::size_t until = state.data == Unsynced::Kept ? state.when : synced;
  std::string out;
  for (const auto& data : file.data) {
    if (data.when < until) out += data.bytes;
  }
  if (state.data == Unsynced::Zeros && synced == 0) out.assign(file.reserved, '\0');
  return out;
}

void build(const Node& folder, const State& state, bool top, const fs::path& at) {
  fs::create_directory(at);
  const std::size_t synced = folder.synced(state.when);
  const std::size_t until = std::max(synced,
                                     top                 ? state.top_until
                                     : state.other_names ? state.when
                                                         : std::size_t{0});
  std::map<std::string, NodePtr> names;
  for (const auto& change : folder.changes) {
    if (change.when >= until) continue;
    for (const auto& [name, node] : change.names)
      names[name] = node;
  }
  for (const auto& [name, node] : names) {
    if (node == nullptr) continue;
    if (node->folder) {
      build(*node, state, false, at / name);
    } else {
      spill(at / name, content(*node, state));
    }
  }
}

const std::vector<Spec> kModel = {{"wte", DType::F32, {13, 8}},
                                  {"optimizer.exp_avg.wte", DType::F32, {13, 8}}};
constexpr std::uint64_t kOld = 1, kNew = 2;

/// Every state that power may leave while `change` is made to a folder with a checkpoint of
/// `old_step`: what is found is whole, it is the old or the new one, and one of them is found.
int expect_survival(std::int64_t old_step,
                    std::int64_t new_step,
                    const std::function<void(Storage&, const fs::path&)>& change) {
  const files::TempDir dir;
  const fs::path root = dir.path() / "checkpoints";
  fs::create_directory(root);
  RememberedDisk disk(root);
  save_model(disk, root, old_step, kModel, ranges, 2, kOld);
  const std::size_t before = disk.changes();
  change(disk, root);
  int states = 0;
  for (std::size_t when = before + 1; when <= disk.changes() + 1; ++when) {
    std::vector<std::size_t> moments = {0, when};  // names that were not synced: none, or all
    for (const auto& each : disk.top->changes) {
      if (each.when >= disk.top->synced(when) && each.when < when) moments.push_back(each.when);
    }
    for (const std::size_t until : moments) {
      for (const Unsynced data : {Unsynced::Kept, Unsynced::Gone, Unsynced::Zeros}) {
        for (const bool other_names : {false, true}) {
          const fs::path left = dir.path() / "left";
          fs::remove_all(left);
          build(*disk.top, {when, data, until, other_names}, true, left);

          const auto found = list(left);
          EXPECT_FALSE(found.empty()) << "change " << when << " of " << disk.changes();
          for (const fs::path& folder : found) {
            const bool is_new =
                *step_of(folder) == new_step && loads_exactly(folder, kModel, ranges, 1, kNew);
            EXPECT_TRUE(is_new || (*step_of(folder) == old_step &&
                                   loads_exactly(folder, kModel, ranges, 1, kOld)))
                << folder << " at change " << when;
            EXPECT_NO_THROW(Checkpoint(folder).verify());
          }
          ++states;
        }
      }
    }
  }
  EXPECT_EQ(*step_of(*newest(root)), new_step);
  return states;
}

class PowerLoss : public ::testing::TestWithParam<How> {};
INSTANTIATE_TEST_SUITE_P(,
                         PowerLoss,
                         ::testing::Values(How::Waiting, How::Background),
                         [](const auto& info) {
                           return info.param == How::Waiting ? "Waiting" : "Background";
                         });

TEST_P(PowerLoss, InASaveLeavesTheOldOrTheNewCheckpointWhole) {
  const int states = expect_survival(1, 2, [](Storage& disk, const fs::path& root) {
    save_model(disk, root, 2, kModel, columns, 2, kNew, GetParam());
  });

  EXPECT_GT(states, 200);
}

TEST_P(PowerLoss, InTheReplacementOfAStepLeavesTheOldOrTheNewOne) {
  const int states = expect_survival(1, 1, [](Storage& disk, const fs::path& root) {
    save_model(disk, root, 1, kModel, columns, 2, kNew, GetParam());
  });

  EXPECT_GT(states, 200);
}

TEST_P(PowerLoss, WhileOlderOnesGoLeavesTheNewOne) {
  const int states = expect_survival(1, 2, [](Storage& disk, const fs::path& root) {
    save_model(disk, root, 2, kModel, columns, 2, kNew, GetParam(), [&] { prune(disk, root, 1); });
  });

  EXPECT_GT(states, 200);
}

/// The model itself: without the syncs of files it finds states that load nothing.
TEST(PowerLossModel, FindsASaveThatDoesNotSync) {
  class Careless final : public Storage {
   public:
    explicit Careless(Storage& disk) : disk_(disk) {}
    void make_folder(const fs::path& path) override { disk_.make_folder(path); }
    std::unique_ptr<Output> create(const fs::path& path, std::uint64_t bytes) override {
      class Unsynced final : public Output {
       public:
        explicit Unsynced(std::unique_ptr<Output> real) : real_(std::move(real)) {}
        void append(std::span<const std::byte> bytes) override { real_->append(bytes); }
        void sync() override {}

       private:
        std::unique_ptr<Output> real_;
      };
      return std::make_unique<Unsynced>(disk_.create(path, bytes));
    }
    void sync_folder(const fs::path& path) override { disk_.sync_folder(path); }
    void rename(const fs::path& from, const fs::path& to) override { disk_.rename(from, to); }
    bool exchange(const fs::path& a, const fs::path& b) override { return disk_.exchange(a, b); }
    void remove(const fs::path& path) override { disk_.remove(path); }
    void write_atomic(const fs::path& path, std::string_view content) override {
      disk_.write_atomic(path, content);
    }

   private:
    Storage& disk_;
  };
  const files::TempDir dir;
  const fs::path root = dir.path() / "checkpoints";
  fs::create_directory(root);
  RememberedDisk disk(root);
  Careless careless(disk);
  save_model(careless, root, 1, kModel, ranges, 2, kOld);
  const std::size_t when = disk.changes() + 1;

  build(*disk.top, {when, Unsynced::Gone, when, true}, true, dir.path() / "left");

  EXPECT_TRUE(fs::exists(dir.path() / "left/step-00000001/manifest.json"));
  EXPECT_THROW(Checkpoint(dir.path() / "left/step-00000001").verify(), Error);
}

}  // namespace
}  // namespace tessera::checkpoint::test
