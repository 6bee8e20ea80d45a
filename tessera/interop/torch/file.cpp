// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/torch/file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"
#include "tessera/interop/torch/pickle.h"
#include "tessera/interop/torch/zip.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;
using Kind = Pickle::Kind;
using Node = Pickle::Node;
using Bytes = std::span<const std::byte>;

constexpr std::size_t kMaxDepth = 32;
constexpr std::size_t kMaxTensors = 1'000'000;
/// LONG1 of 10 bytes: the number 0x1950a86a20f9469cfc6c.
constexpr std::string_view kLegacyMagic = "\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
constexpr std::int64_t kLegacyProtocol = 1001;
constexpr const char* kDamaged = "the file is damaged or was cut short: fetch it again";

std::optional<DType> dtype_of_storage(std::string_view global) {
  static constexpr std::array<std::pair<std::string_view, DType>, 10> kTypes = {
      {{"torch.DoubleStorage", DType::F64},
       {"torch.FloatStorage", DType::F32},
       {"torch.HalfStorage", DType::F16},
       {"torch.BFloat16Storage", DType::BF16},
       {"torch.LongStorage", DType::I64},
       {"torch.IntStorage", DType::I32},
       {"torch.ShortStorage", DType::I16},
       {"torch.CharStorage", DType::I8},
       {"torch.ByteStorage", DType::U8},
       {"torch.BoolStorage", DType::Bool}}};
  for (const auto& [name, dtype] : kTypes) {
    if (name == global) return dtype;
  }
  return std::nullopt;
}

/// The types without a storage of their own: torch stores their tensors as bytes.
std::optional<DType> dtype_of_elements(std::string_view global) {
  static constexpr std::array<std::pair<std::string_view, DType>, 13> kTypes = {
      {{"torch.float64", DType::F64},
       {"torch.float32", DType::F32},
       {"torch.float16", DType::F16},
       {"torch.bfloat16", DType::BF16},
       {"torch.int64", DType::I64},
       {"torch.int32", DType::I32},
       {"torch.int16", DType::I16},
       {"torch.int8", DType::I8},
       {"torch.uint64", DType::U64},
       {"torch.uint32", DType::U32},
       {"torch.uint16", DType::U16},
       {"torch.uint8", DType::U8},
       {"torch.bool", DType::Bool}}};
  for (const auto& [name, dtype] : kTypes) {
    if (name == global) return dtype;
  }
  return std::nullopt;
}

/// A tensor's reference to its storage.
struct Storage {
  std::string key;
  DType dtype = DType::F32;
  std::uint64_t numel = 0;
  /// Element type by which the file counts; U8 if the storage itself is untyped.
  DType unit = dtype;
};

/// A tensor as described by the pickle.
struct Described {
  std::string name;
  Storage storage;
  std::uint64_t offset = 0;
  std::vector<std::int64_t> shape, strides;
};

/// Walks a pickle and lists its tensors.
class Lister {
 public:
  /// `anything`: the file may be a single value, a tensor or a number.
  Lister(const Pickle& pickle, const std::string& source, bool anything)
      : pickle_(pickle), source_(source), anything_(anything) {}

  std::vector<Described> list() {
    const Kind kind = pickle_.root().kind;
    if (!anything_ && kind != Kind::Dict && kind != Kind::List && kind != Kind::Tuple) {
      refuse(fmt::format("it holds {} where a dict of tensors is expected",
                         Pickle::shown(pickle_.root())));
    }
    visit(pickle_.root(), "", 0);
    return std::move(out_);
  }
  /// The tree without its tensors.
  json::Value values() {
    visited_ = 0;
    return value(pickle_.root(), 0);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Error::Kind::Format,
                fmt::format("{}: {}", source_, what),
                "expected a state_dict as torch.save writes it");
  }
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const {
    refuse(fmt::format("tensor {} {}", checkpoint::JsonCursor::shown(name), what));
  }
  [[nodiscard]] const Node& at(const Node& node, std::size_t i) const {
    return pickle_.node(node.items[i]);
  }

  void visit(const Node& node, const std::string& name, std::size_t depth) {
    // Values may be shared in cycles (a list of a list of ...), so visits are counted, not nodes.
    if (depth > kMaxDepth) refuse(fmt::format("it is nested more than {} levels deep", kMaxDepth));
    if (++visited_ > Pickle::kMaxNodes) refuse("it repeats its values without end");
    switch (node.kind) {
      case Kind::Call:
        return visit_call(node, name);
      case Kind::Object:
        visit(at(node, 1), join(name, "arguments"), depth + 1);
        if (node.items.size() > 2) visit(at(node, 2), join(name, "state"), depth + 1);
        return;
      case Kind::List:
      case Kind::Tuple:
        for (std::size_t i = 0; i < node.items.size(); ++i) {
          const Node& item = at(node, i);
          visit(item, leads_on(item) ? join(name, std::to_string(i)) : "", depth + 1);
        }
        return;
      case Kind::Dict:
        for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
          const Node& item = at(node, i + 1);
          visit(item, leads_on(item) ? join(name, key_text(at(node, i))) : "", depth + 1);
        }
        return;
      default:
        return;
    }
  }

  json::Value value(const Node& node, std::size_t depth) {
    if (depth > kMaxDepth || ++visited_ > kMaxValues) refuse("it has more values than can be kept");
    switch (node.kind) {
      case Kind::Bool:
        return json::Value::boolean(node.integer != 0);
      case Kind::Int:
        return json::Value::integer(node.integer);
      case Kind::Float:
        return json::Value::number(node.number);
      case Kind::String:
      case Kind::Global:
        spend(node.text.size());
        return json::Value::string(node.text);
      case Kind::List:
      case Kind::Tuple:
        return array(node, depth);
      case Kind::Dict:
        return object(node, depth);
      case Kind::Call:
        return is_size(node) ? value(at(at(node, 1), 0), depth + 1) : json::Value();
      case Kind::Object:
        return described(node, depth);
      default:
        return {};
    }
  }
  json::Value array(const Node& node, std::size_t depth) {
    std::vector<json::Value> items;
    for (std::size_t i = 0; i < node.items.size(); ++i)
      items.push_back(value(at(node, i), depth + 1));
    return json::Value::array(std::move(items));
  }
  // A repeated key has its last value, as in Python.
  json::Value object(const Node& node, std::size_t depth) {
    std::vector<json::Value::Member> members;
    std::map<std::string, std::size_t> places;
    for (std::size_t i = 0; i + 1 < node.items.size(); i += 2) {
      const std::string key = key_text(at(node, i));
      spend(key.size());
      const auto [place, fresh] = places.emplace(key, members.size());
      if (fresh) members.emplace_back(key, json::Value());
      members[place->second].second = value(at(node, i + 1), depth + 1);
    }
    return json::Value::object(std::move(members));
  }
  json::Value described(const Node& node, std::size_t depth) {
    spend(at(node, 0).text.size());
    json::Value out = json::Value::object({{"class", json::Value::string(at(node, 0).text)},
                                           {"arguments", value(at(node, 1), depth + 1)}});
    if (node.items.size() > 2) out["state"] = value(at(node, 2), depth + 1);
    return out;
  }

  /// True if the node may contain a tensor; other values need no name.
  static bool leads_on(const Node& node) {
    return node.kind == Kind::Call || node.kind == Kind::Object || node.kind == Kind::Dict ||
           node.kind == Kind::List || node.kind == Kind::Tuple;
  }
  [[nodiscard]] std::string join(const std::string& name, const std::string& key) {
    if (name.size() + key.size() >= kMaxName) refuse("it has a name of more than 64 kB");
    spend(name.size() + key.size());
    return name.empty() ? key : name + "." + key;
  }
  /// A value may be shared by many places in the pickle, while its names and copies are separate.
  void spend(std::size_t bytes) {
    spent_ += bytes;
    if (spent_ > kMaxSpent)
      refuse("it repeats its values until their names and texts are more than 256 MiB");
  }
  static std::string key_text(const Node& key) {
    if (key.kind == Kind::String) return key.text;
    return key.kind == Kind::Int ? std::to_string(key.integer) : Pickle::shown(key);
  }

  void visit_call(const Node& call, const std::string& name) {
    const std::string& function = at(call, 0).text;
    const Node& arguments = at(call, 1);
    if (function == "torch.Size" || function == "torch.device") return;
    if (function.starts_with("torch._utils._rebuild_parameter")) {
      if (arguments.items.size() < 3 || arguments.items.size() > 4 ||
          at(arguments, 0).kind != Kind::Call ||
          !at(at(arguments, 0), 0).text.starts_with("torch._utils._rebuild_tensor")) {
        refuse(name, "is a parameter without a tensor");
      }
      return add(at(at(arguments, 0), 1), name);
    }
    add(arguments, name);
  }

  // (storage, offset, shape, strides, ...): the next two concern gradients; then follows, for
  // _rebuild_tensor_v3, the element type, and last torch's other metadata of the tensor.
  void add(const Node& arguments, const std::string& name) {
    if (arguments.items.size() < 4 || arguments.items.size() > 8)
      refuse(name, fmt::format("is built from {} values", arguments.items.size()));
    if (out_.size() == kMaxTensors) refuse(fmt::format("it has more than {} tensors", kMaxTensors));
    if (!names_.insert(name).second) refuse(name, "is there twice");
    Described tensor{name,
                     storage(arguments, name),
                     count(at(arguments, 1), name, "an offset"),
                     sizes(at(arguments, 2), name, "a shape"),
                     sizes(at(arguments, 3), name, "strides")};
    if (tensor.shape.size() != tensor.strides.size()) {
      refuse(name,
             fmt::format("has {} dims and {} strides", tensor.shape.size(), tensor.strides.size()));
    }
    for (std::size_t i = kMetadata; i < arguments.items.size(); ++i)
      refuse_pending(at(arguments, i), name);
    out_.push_back(std::move(tensor));
  }

  /// {'neg': True}: the elements have the opposite sign of those in the storage, a negation that
  /// torch has not applied yet; likewise {'conj': True}.
  void refuse_pending(const Node& metadata, const std::string& name) const {
    if (metadata.kind != Kind::Dict) return;
    for (std::size_t i = 0; i + 1 < metadata.items.size(); i += 2) {
      const std::string key = key_text(at(metadata, i));
      const Node& value = at(metadata, i + 1);
      const bool set = (value.kind != Kind::Bool && value.kind != Kind::Int) || value.integer != 0;
      TESSERA_REQUIRE(
          !set || (key != "neg" && key != "conj"),
          Unsupported,
          fmt::format("{}: tensor {} has the {} bit: its values are not those that the file holds",
                      source_,
                      checkpoint::JsonCursor::shown(name),
                      key == "neg" ? "negative" : "conjugate"),
          fmt::format("save tensor.resolve_{}()", key));
    }
  }

  // ('storage', torch.FloatStorage, key, device, elements), and in legacy files a view or None.
  [[nodiscard]] Storage storage(const Node& arguments, const std::string& name) {
    const Node& node = at(arguments, 0);
    if (node.kind != Kind::Persistent || at(node, 0).kind != Kind::Tuple)
      refuse(name, "refers to no storage");
    const Node& id = at(node, 0);
    if (id.items.size() < 5 || id.items.size() > 6 || at(id, 0).kind != Kind::String ||
        at(id, 0).text != "storage" || at(id, 2).kind != Kind::String) {
      refuse(name, "lies in a storage that is described in an unknown way");
    }
    if (id.items.size() == 6 && at(id, 5).kind != Kind::None)
      refuse(name, "lies in a view of a storage, which torch stopped writing in 2017");
    spend(at(id, 2).text.size());
    const std::string type = at(id, 1).kind == Kind::Global ? at(id, 1).text : "";
    if (type.ends_with("UntypedStorage") && arguments.items.size() > 6 &&
        at(arguments, 6).kind == Kind::Global) {
      const auto elements = dtype_of_elements(at(arguments, 6).text);
      if (!elements)
        refuse(name, fmt::format("is of {}, which is not read", at(arguments, 6).text));
      return {at(id, 2).text,
              *elements,
              count(at(id, 4), name, "a storage") / size_of(*elements),
              DType::U8};
    }
    const auto dtype = dtype_of_storage(type);
    if (!dtype) refuse(name, fmt::format("lies in a storage of type {}", Pickle::shown(at(id, 1))));
    return {at(id, 2).text, *dtype, count(at(id, 4), name, "a storage")};
  }

  [[nodiscard]] std::uint64_t count(const Node& node,
                                    const std::string& name,
                                    const char* what) const {
    if (node.kind != Kind::Int || node.integer < 0)
      refuse(name, fmt::format("has {} of {}", what, Pickle::shown(node)));
    return static_cast<std::uint64_t>(node.integer);
  }

  [[nodiscard]] std::vector<std::int64_t> sizes(const Node& node,
                                                const std::string& name,
                                                const char* what) {
    const Node& tuple = is_size(node) ? at(at(node, 1), 0) : node;
    spend(tuple.items.size() * sizeof(std::int64_t));
    if (tuple.kind != Kind::Tuple && tuple.kind != Kind::List)
      refuse(name, fmt::format("has {} of {}", what, Pickle::shown(tuple)));
    if (tuple.items.size() > checkpoint::kMaxDims)
      refuse(name, fmt::format("has {} of {} dims", what, tuple.items.size()));
    std::vector<std::int64_t> out;
    for (std::size_t i = 0; i < tuple.items.size(); ++i)
      out.push_back(static_cast<std::int64_t>(count(at(tuple, i), name, what)));
    return out;
  }
  [[nodiscard]] bool is_size(const Node& node) const {
    return node.kind == Kind::Call && at(node, 0).text == "torch.Size" &&
           at(node, 1).items.size() == 1;
  }

  static constexpr std::size_t kMaxName = 1 << 16, kMaxValues = 1'000'000, kMaxSpent = 1 << 28;
  /// The first position of such metadata among a tensor's arguments.
  static constexpr std::size_t kMetadata = 6;
  const Pickle& pickle_;
  const std::string& source_;
  bool anything_;
  std::vector<Described> out_;
  std::set<std::string> names_;
  std::size_t visited_ = 0, spent_ = 0;
};

/// True if all elements of a tensor are in its storage. No intermediate offset may be outside of
/// it, so neither element nor byte counts can overflow 64 bits.
bool lies_inside(const Described& tensor) {
  const std::uint64_t numel = tensor.storage.numel;
  if (std::count(tensor.shape.begin(), tensor.shape.end(), 0) > 0) return tensor.offset <= numel;
  if (tensor.offset >= numel) return false;
  std::uint64_t last = tensor.offset;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(static_cast<std::uint64_t>(tensor.shape[d] - 1),
                               static_cast<std::uint64_t>(tensor.strides[d]),
                               &step) ||
        step >= numel - last) {
      return false;
    }
    last += step;
  }
  return true;
}

/// True if the first pickle is the magic number, in protocol 2 or 3, or with a frame around it.
bool begins_legacy(std::string_view text) {
  constexpr std::size_t kProto = 2, kFrame = 9;
  if (text.size() < kProto || text.front() != '\x80') return false;
  text.remove_prefix(kProto);
  if (text.starts_with('\x95') && text.size() > kFrame) text.remove_prefix(kFrame);
  return text.starts_with("\x8a\x0a") && text.substr(2).starts_with(kLegacyMagic);
}

/// Reads one file.
class Reader {
 public:
  /// `anything`: the file may be a single value, and values other than tensors are needed too.
  Reader(const fs::path& path, bool anything)
      : path_(path),
        source_(path.string()),
        file_(std::make_shared<const files::Mapped>(path)),
        anything_(anything) {}

  TorchContents read() {
    const std::string_view text = file_->text();
    constexpr std::size_t kTarMark = 257;
    if (text.starts_with("PK\x03\x04")) return read_zip_form();
    if (begins_legacy(text)) return read_legacy_form();
    TESSERA_REQUIRE(text.size() < kTarMark + 5 || text.substr(kTarMark, 5) != "ustar",
                    Unsupported,
                    source_ + ": the tar files of torch before 0.1.10 are not read",
                    "load it in Python and save it again: torch.save(torch.load(file), file)");
    refuse("it is not a file of torch.save: neither a zip file nor torch's stream of pickles");
  }

 private:
  [[noreturn]] void refuse(const std::string& what, const char* fix = kDamaged) const {
    throw Error(Error::Kind::Format, fmt::format("{}: {}", source_, what), fix);
  }
  [[nodiscard]] Bytes bytes(const ZipEntry& entry) const {
    return file_->bytes().subspan(entry.begin, entry.size);
  }

  TorchContents read_zip_form() {
    const auto entries = read_zip(file_->bytes(), source_);
    const std::string root = root_of(entries);
    if (const auto order = entries.find(root + "byteorder"); order != entries.end()) {
      const Bytes word = bytes(order->second);
      require_little(std::string_view(reinterpret_cast<const char*>(word.data()), word.size()) ==
                     "little");
    }
    const ZipEntry& described = entries.at(root + "data.pkl");
    const Pickle pickle(bytes(described), source_, described.begin);
    TorchContents out;
    Lister lister(pickle, source_, anything_);
    for (const Described& tensor : lister.list()) {
      const auto found = entries.find(root + "data/" + tensor.storage.key);
      if (found == entries.end())
        refuse(fmt::format("tensor {} refers to missing storage {}",
                           checkpoint::JsonCursor::shown(tensor.name),
                           checkpoint::JsonCursor::shown(tensor.storage.key)));
      out.tensors.push_back(place(tensor, bytes(found->second)));
    }
    if (anything_) out.values = lister.values();
    return out;
  }

  // The folder inside the archive; its name is the file's name at the time of writing.
  [[nodiscard]] std::string root_of(
      const std::map<std::string, ZipEntry, std::less<>>& entries) const {
    std::optional<std::string> root;
    for (const auto& [name, entry] : entries) {
      const std::size_t slash = name.find('/');
      if (slash == std::string::npos || name.substr(slash + 1) != "data.pkl") continue;
      if (root) refuse("it has two data.pkl");
      root = name.substr(0, slash + 1);
    }
    if (!root) refuse("it is a zip file without data.pkl", "expected a file of torch.save");
    return *root;
  }

  void require_little(bool little) const {
    TESSERA_REQUIRE(little,
                    Unsupported,
                    source_ + ": was written by a machine of another byte order",
                    "load it in Python and save it again on this machine");
  }

  TorchContents read_legacy_form() {
    const Bytes all = file_->bytes();
    std::uint64_t at = 0;
    const auto next = [&] {
      Pickle pickle(all.subspan(at), source_, at);
      at += pickle.size();
      return pickle;
    };
    next();  // the magic number, already checked
    const Pickle protocol = next();
    if (protocol.root().kind != Kind::Int || protocol.root().integer != kLegacyProtocol)
      refuse(fmt::format("its protocol is {}", Pickle::shown(protocol.root())));
    require_little(is_little(next()));
    const Pickle object = next();
    Lister lister(object, source_, anything_);
    const auto tensors = lister.list();
    const Pickle keys = next();
    const auto storages = legacy_storages(keys, tensors, at);
    TorchContents out;
    for (const Described& tensor : tensors) {
      const auto found = storages.find(tensor.storage.key);
      if (found == storages.end())
        refuse(fmt::format("tensor {} refers to missing storage {}",
                           checkpoint::JsonCursor::shown(tensor.name),
                           checkpoint::JsonCursor::shown(tensor.storage.key)));
      out.tensors.push_back(place(tensor, found->second));
    }
    if (anything_) out.values = lister.values();
    return out;
  }

  static bool is_little(const Pickle& system) {
    const Node& dict = system.root();
    for (std::size_t i = 0; dict.kind == Kind::Dict && i + 1 < dict.items.size(); i += 2) {
      const Node& key = system.node(dict.items[i]);
      if (key.kind == Kind::String && key.text == "little_endian")
        return system.node(dict.items[i + 1]).integer == 1;
    }
    return true;
  }

  /// Each storage consists of its number of elements and the elements; their type follows from the
  /// tensors.
  [[nodiscard]] std::map<std::string, Bytes> legacy_storages(const Pickle& keys,
                                                             const std::vector<Described>& tensors,
                                                             std::uint64_t at) const {
    if (keys.root().kind != Kind::List) refuse("its storages are listed in no list");
    std::map<std::string_view, DType> types;
    for (const Described& tensor : tensors) {
      const auto [known, fresh] = types.emplace(tensor.storage.key, tensor.storage.unit);
      if (!fresh && known->second != tensor.storage.unit) two_types(tensor);
    }
    std::map<std::string, Bytes> out;
    const Bytes all = file_->bytes();
    for (const Pickle::Id id : keys.root().items) {
      const Node& key = keys.node(id);
      const auto type = types.find(key.text);
      if (key.kind != Kind::String || type == types.end())
        refuse(fmt::format("storage {} belongs to no tensor", Pickle::shown(key)));
      std::uint64_t numel = 0;
      if (all.size() - at < sizeof(numel)) refuse("it ends before its storages");
      std::memcpy(&numel, all.data() + at, sizeof(numel));
      at += sizeof(numel);
      const std::uint64_t width = size_of(type->second);
      if (numel > (all.size() - at) / width) {
        refuse(fmt::format("storage {} claims {} elements of {} bytes; {} bytes are left",
                           checkpoint::JsonCursor::shown(key.text),
                           numel,
                           width,
                           all.size() - at));
      }
      if (!out.emplace(key.text, all.subspan(at, numel * width)).second)
        refuse(fmt::format("storage {} is listed twice", checkpoint::JsonCursor::shown(key.text)));
      at += numel * width;
    }
    if (at != all.size()) refuse(fmt::format("{} bytes follow its last storage", all.size() - at));
    return out;
  }

  [[noreturn]] void two_types(const Described& tensor) const {
    refuse(fmt::format("tensor {} takes storage {} for another type than a tensor before it",
                       checkpoint::JsonCursor::shown(tensor.name),
                       checkpoint::JsonCursor::shown(tensor.storage.key)));
  }

  [[nodiscard]] Weight place(const Described& tensor, Bytes storage) const {
    const auto lie = [&](const std::string& what) {
      refuse(fmt::format("tensor {} {}", checkpoint::JsonCursor::shown(tensor.name), what));
    };
    const std::uint64_t width = size_of(tensor.storage.dtype);
    if (tensor.storage.numel > storage.size() / width) {
      lie(fmt::format(
          "lies in a storage of {} elements of {} bytes, but the file has {} bytes of it",
          tensor.storage.numel,
          width,
          storage.size()));
    }
    if (checkpoint::checked_numel(tensor.shape) < 0)
      lie(fmt::format("has a shape [{}] that overflows", fmt::join(tensor.shape, ", ")));
    if (!lies_inside(tensor)) {
      lie(fmt::format(
          "of shape [{}] with strides [{}] from element {} reaches past the {} elements "
          "of its storage",
          fmt::join(tensor.shape, ", "),
          fmt::join(tensor.strides, ", "),
          tensor.offset,
          tensor.storage.numel));
    }
    return {tensor.name,
            tensor.storage.dtype,
            tensor.shape,
            tensor.strides,
            storage.data() + tensor.offset * width,
            path_,
            file_};
  }

  fs::path path_;
  std::string source_;
  std::shared_ptr<const files::Mapped> file_;
  bool anything_;
};

}  // namespace

std::vector<Weight> open_torch_file(const fs::path& path) {
  checkpoint::require_plain_file(path, true);
  return Reader(path, false).read().tensors;
}

TorchContents read_torch_file(const fs::path& path) {
  checkpoint::require_plain_file(path, true);
  return Reader(path, true).read();
}

}  // namespace tessera::interop
