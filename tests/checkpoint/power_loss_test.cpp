// SPDX-License-Identifier: Apache-2.0
// labels: slow
// Power failures during a save. A model of a disk keeps what was synced and an arbitrary subset of
// the rest: of each file's bytes all, none, some or zeros; each change of a name is kept or not,
// before or after the data. The test constructs and checks every such state.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>

#include "checkpoint/support.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/folders.h"

namespace tessera::checkpoint::test {
namespace {

/// A file or folder and its changes, each with its position in the order of all changes.
struct Node {
  struct Change {  ///< in a folder: `name` refers to `node` from now on, or to nothing
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

  /// Returns the last sync before `end`; nothing before it can be lost.
  [[nodiscard]] std::size_t synced(std::size_t end) const {
    std::size_t last = 0;
    for (const std::size_t when : syncs)
      last = when < end ? when : last;
    return last;
  }
};
using NodePtr = std::shared_ptr<Node>;

/// A real disk that records the changes under `root`.
class RememberedDisk final : public Storage {
 public:
  explicit RememberedDisk(fs::path root, bool can_exchange = true)
      : root_(std::move(root)), can_exchange_(can_exchange) {
    top->folder = true;
  }
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
    if (!can_exchange_ || !real_storage().exchange(a, b)) return false;
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
  /// Entry by entry, as the file system removes a folder.
  void forget(const fs::path& path, const NodePtr& node) {
    const auto inside = node->now;
    for (const auto& [name, child] : inside)
      forget(path / name, child);
    change(parent(path), {{path.filename(), nullptr}});
  }

  fs::path root_;
  bool can_exchange_;
  std::mutex mutex_;
  std::size_t clock_ = 0;
};

/// What remains of the unsynced bytes of a file: all; none; the first half; the first half and
/// zeros; zeros and the second half; zeros for all reserved bytes; older contents of the disk.
enum class Fate { Whole, Gone, Torn, Tail, Hole, Zeros, Stale };
constexpr std::size_t kFates = 7;

/// A state of the disk: which changes before `when` reached it.
struct State {
  std::size_t when = 0;
  std::size_t top_names = 0;  ///< bit i: the i-th change of the top folder's names since its sync
  bool other_names = false;   ///< names in the other folders: all of them, or only the synced ones
  std::map<const Node*, Fate> files;
};

std::string content(const Node& file, const State& state) {
  const std::size_t synced = file.synced(state.when);
  std::string out, rest;
  for (const auto& data : file.data) {
    if (data.when < state.when) (data.when < synced ? out : rest) += data.bytes;
  }
  const auto known = state.files.find(&file);
  const std::size_t half = rest.size() / 2;
  switch (known == state.files.end() ? Fate::Whole : known->second) {
    case Fate::Whole:
      return out + rest;
    case Fate::Gone:
      return out;
    case Fate::Torn:
      return out + rest.substr(0, half);
    case Fate::Tail:
      return out + rest.substr(0, half) + std::string(rest.size() - half, '\0');
    case Fate::Hole:
      return out + std::string(half, '\0') + rest.substr(half);
    case Fate::Zeros:
      out.resize(std::max<std::size_t>(file.reserved, out.size() + rest.size()), '\0');
      return out;
    case Fate::Stale:
      return out + std::string(rest.size(), '\xA5');
  }
  return out;
}

/// Paths and their contents: bytes, or nothing for a folder.
using Tree = std::map<std::string, std::optional<std::string>>;

void grow(const Node& folder, const State& state, bool top, const std::string& at, Tree& tree) {
  const std::size_t synced = folder.synced(state.when);
  std::map<std::string, NodePtr> names;
  std::size_t unsynced = 0;
  for (const auto& change : folder.changes) {
    if (change.when >= state.when) break;
    bool there = change.when < synced || (!top && state.other_names);
    if (top && change.when >= synced) there = ((state.top_names >> unsynced++) & 1U) != 0;
    if (!there) continue;
    for (const auto& [name, node] : change.names)
      names[name] = node;
  }
  for (const auto& [name, node] : names) {
    if (node == nullptr) continue;
    const std::string path = at.empty() ? name : at + "/" + name;
    if (node->folder) {
      tree[path] = std::nullopt;
      grow(*node, state, false, path, tree);
    } else {
      tree[path] = content(*node, state);
    }
  }
}

/// Parents precede their contents.
void build(const Tree& tree, const fs::path& at) {
  fs::create_directory(at);
  for (const auto& [path, bytes] : tree) {
    if (bytes) {
      spill(at / path, *bytes);
    } else {
      fs::create_directory(at / path);
    }
  }
}

/// Finds files under `folder` with bytes, or reserved space, that were not synced before `when`.
void find_unsynced(const Node& folder, std::size_t when, std::set<const Node*>& found) {
  for (const auto& change : folder.changes) {
    if (change.when >= when) return;
    for (const auto& [name, node] : change.names) {
      if (node == nullptr) continue;
      if (node->folder) {
        find_unsynced(*node, when, found);
        continue;
      }
      const std::size_t synced = node->synced(when);
      const bool open = std::ranges::any_of(node->data, [&](const Node::Data& data) {
        return data.when >= synced && data.when < when;
      });
      if (open || (synced == 0 && node->reserved > 0)) found.insert(node.get());
    }
  }
}

/// Returns assignments of fates such that any two files meet with any two fates (the lines of the
/// plane over the integers modulo 7, which has eight directions), and each file with each fate
/// while the others are complete.
std::vector<std::map<const Node*, Fate>> fates_of(const std::set<const Node*>& files) {
  std::map<const Node*, Fate> whole;
  for (const Node* file : files)
    whole[file] = Fate::Whole;
  std::vector<std::map<const Node*, Fate>> out = {whole};
  for (const Node* file : files) {
    for (std::size_t fate = 1; fate < kFates; ++fate) {
      out.push_back(whole);
      out.back()[file] = static_cast<Fate>(fate);
    }
  }
  if (files.size() < 2) return out;
  if (files.size() > kFates + 1) throw std::logic_error("more files than directions");
  for (std::size_t slope = 0; slope < kFates; ++slope) {
    for (std::size_t start = 0; start < kFates; ++start) {
      auto& row = out.emplace_back();
      for (const Node* file : files) {
        const std::size_t column = row.size();
        row[file] = static_cast<Fate>(column < kFates ? (slope * column + start) % kFates : slope);
      }
    }
  }
  return out;
}

const std::vector<Spec> kModel = {{"wte", DType::F32, {13, 8}},
                                  {"optimizer.exp_avg.wte", DType::F32, {13, 8}}};
constexpr std::uint64_t kOld = 1, kNew = 2;

/// Returns what is wrong with a folder of checkpoints after a power failure: every checkpoint found
/// must be complete and be the old or the new one, one of them must be found, and the next save
/// must succeed and clean up.
std::optional<std::string> fault_of(const fs::path& left,
                                    std::int64_t old_step,
                                    std::int64_t new_step) {
  try {
    const auto found = list(left);
    if (found.empty()) return "nothing is found";
    for (const fs::path& folder : found) {
      const std::int64_t step = *step_of(folder);
      Checkpoint(folder).verify();
      const bool known = (step == new_step && loads_exactly(folder, kModel, ranges, 1, kNew)) ||
                         (step == old_step && loads_exactly(folder, kModel, ranges, 1, kOld));
      if (!known) return folder.filename().string() + " is neither the old nor the new one";
    }
    save_model(left, new_step + 1, kModel, ranges, 1, kNew);
    if (!loads_exactly(*newest(left), kModel, ranges, 1, kNew)) return "the next save is wrong";
    for (const auto& entry : fs::directory_iterator(left)) {
      const std::string name = entry.path().filename().string();
      if (name != "latest" && !name.starts_with("step-")) return name + " stays for ever";
    }
    return std::nullopt;
  } catch (const Error& error) {
    return error.text();
  }
}

struct Survey {
  int states = 0, different = 0;
  std::vector<std::string> faults;
};

/// Checks every state that a power failure may leave while `change` is made to a folder with a
/// checkpoint of `old_step`.
Survey survey(std::int64_t old_step,
              std::int64_t new_step,
              const std::function<void(Storage&, const fs::path&)>& change,
              bool can_exchange = true) {
  const files::TempDir dir;
  const fs::path root = dir.path() / "checkpoints";
  fs::create_directory(root);
  RememberedDisk disk(root, can_exchange);
  save_model(disk, root, old_step, kModel, ranges, 2, kOld);
  const std::size_t before = disk.changes();
  change(disk, root);
  EXPECT_EQ(*step_of(*newest(root)), new_step);

  Survey out;
  std::set<Tree> seen;
  for (std::size_t when = before + 1; when <= disk.changes() + 1; ++when) {
    const std::size_t synced = disk.top->synced(when);
    const auto unsynced = std::ranges::count_if(disk.top->changes, [&](const Node::Change& each) {
      return each.when >= synced && each.when < when;
    });
    if (unsynced > 8) throw std::logic_error("more changes of names than are tried");
    std::set<const Node*> open;
    find_unsynced(*disk.top, when, open);
    for (const auto& files : fates_of(open)) {
      for (std::size_t names = 0; names < std::size_t{1} << unsynced; ++names) {
        for (const bool other_names : {false, true}) {
          Tree tree;
          grow(*disk.top, {when, names, other_names, files}, true, "", tree);
          ++out.states;
          if (!seen.insert(tree).second) continue;
          ++out.different;
          const fs::path left = dir.path() / "left";
          fs::remove_all(left);
          build(tree, left);
          if (const auto fault = fault_of(left, old_step, new_step))
            out.faults.push_back("change " + std::to_string(when) + ": " + *fault);
        }
      }
    }
  }
  return out;
}

void expect_survival(const Survey& found) {
  EXPECT_THAT(found.faults, ::testing::IsEmpty());
  EXPECT_GT(found.states, 200);
  EXPECT_GT(found.different, 30);
}

class PowerLoss : public ::testing::TestWithParam<How> {};
INSTANTIATE_TEST_SUITE_P(,
                         PowerLoss,
                         ::testing::Values(How::Waiting,
                                           How::Background,
                                           How::BackgroundThenWaiting),
                         [](const auto& info) {
                           return info.param == How::Waiting      ? "Waiting"
                                  : info.param == How::Background ? "Background"
                                                                  : "BackgroundThenWaiting";
                         });

TEST_P(PowerLoss, InASaveLeavesTheOldOrTheNewCheckpointWhole) {
  expect_survival(survey(1, 2, [](Storage& disk, const fs::path& root) {
    save_model(disk, root, 2, kModel, columns, 2, kNew, GetParam());
  }));
}

TEST_P(PowerLoss, InTheReplacementOfAStepLeavesTheOldOrTheNewOne) {
  expect_survival(survey(1, 1, [](Storage& disk, const fs::path& root) {
    save_model(disk, root, 1, kModel, columns, 2, kNew, GetParam());
  }));
}

TEST_P(PowerLoss, InAReplacementWhereNamesCannotBeSwappedLeavesTheOldOrTheNewOne) {
  constexpr bool kCanExchange = false;
  expect_survival(survey(
      1,
      1,
      [](Storage& disk, const fs::path& root) {
        save_model(disk, root, 1, kModel, columns, 2, kNew, GetParam());
      },
      kCanExchange));
}

TEST_P(PowerLoss, WhileOlderOnesGoLeavesTheNewOne) {
  expect_survival(survey(1, 2, [](Storage& disk, const fs::path& root) {
    save_model(disk, root, 2, kModel, columns, 2, kNew, GetParam(), [&] { prune(disk, root, 1); });
  }));
}

/// A disk that omits the syncs of files, or of folders.
class Careless final : public Storage {
 public:
  Careless(Storage& disk, bool files, bool folders)
      : disk_(disk), files_(files), folders_(folders) {}
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
    auto real = disk_.create(path, bytes);
    if (files_) return real;
    return std::make_unique<Unsynced>(std::move(real));
  }
  void sync_folder(const fs::path& path) override {
    if (folders_) disk_.sync_folder(path);
  }
  void rename(const fs::path& from, const fs::path& to) override { disk_.rename(from, to); }
  bool exchange(const fs::path& a, const fs::path& b) override { return disk_.exchange(a, b); }
  void remove(const fs::path& path) override { disk_.remove(path); }
  void write_atomic(const fs::path& path, std::string_view content) override {
    disk_.write_atomic(path, content);
  }

 private:
  Storage& disk_;
  bool files_, folders_;
};

/// Tests the model itself: saves that omit a sync are detected, for every way of losing data.
TEST(PowerLossModel, FindsASaveThatDoesNotSyncItsFiles) {
  const Survey found = survey(1, 2, [](Storage& disk, const fs::path& root) {
    Careless careless(disk, false, true);
    save_model(careless, root, 2, kModel, columns, 2, kNew);
  });

  const auto says = [&](const std::string& what) {
    return std::ranges::any_of(found.faults, [&](const std::string& fault) {
      return fault.find(what) != std::string::npos;
    });
  };
  EXPECT_TRUE(says("do not match their checksum"));
  EXPECT_TRUE(says("rank-00000.safetensors"));
  EXPECT_TRUE(says("rank-00001.safetensors"));
  EXPECT_TRUE(says("manifest.json"));
}

TEST(PowerLossModel, FindsAReplacementThatDoesNotSyncItsFolders) {
  const Survey found = survey(1, 1, [](Storage& disk, const fs::path& root) {
    Careless careless(disk, true, false);
    save_model(careless, root, 1, kModel, columns, 2, kNew);
  });

  EXPECT_THAT(found.faults, ::testing::Contains(::testing::EndsWith("nothing is found")));
}

TEST(PowerLossModel, LetsEveryTwoFilesMeetWithEveryTwoFates) {
  std::vector<Node> nodes(kFates + 1);
  std::set<const Node*> files;
  for (const Node& node : nodes)
    files.insert(&node);

  const auto rows = fates_of(files);

  for (const Node& a : nodes) {
    for (const Node& b : nodes) {
      std::set<std::pair<Fate, Fate>> met;
      for (const auto& row : rows)
        met.emplace(row.at(&a), row.at(&b));
      EXPECT_EQ(met.size(), &a == &b ? kFates : kFates * kFates);
    }
  }
}

}  // namespace
}  // namespace tessera::checkpoint::test
