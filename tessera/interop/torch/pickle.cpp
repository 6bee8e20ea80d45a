// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/torch/pickle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/interop/torch/pickle_globals.h"

namespace tessera::interop {
namespace {

constexpr const char* kFix =
    "if you trust the file, save its tensors alone in Python: torch.save({name: tensor, ...}, "
    "file), "
    "or as safetensors";

constexpr const char* kDense =
    "load it in Python and save it again as plain tensors: tensor.dequantize() or "
    "tensor.to_dense()";

// Python's names of opcodes that a reader of data does not support.
std::string opcode_name(unsigned opcode) {
  static constexpr std::array<std::pair<unsigned, const char*>, 26> kNames = {{
      {'i', "INST"},         {'o', "OBJ"},
      {0x81, "NEWOBJ"},      {0x92, "NEWOBJ_EX"},
      {0x82, "EXT1"},        {0x83, "EXT2"},
      {0x84, "EXT4"},        {'P', "PERSID"},
      {'0', "POP"},          {'1', "POP_MARK"},
      {'2', "DUP"},          {'I', "INT"},
      {'L', "LONG"},         {'F', "FLOAT"},
      {'S', "STRING"},       {'V', "UNICODE"},
      {'g', "GET"},          {'p', "PUT"},
      {'l', "LIST"},         {'d', "DICT"},
      {0x8F, "EMPTY_SET"},   {0x90, "ADDITEMS"},
      {0x91, "FROZENSET"},   {0x96, "BYTEARRAY8"},
      {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"},
  }};
  for (const auto& [code, name] : kNames) {
    if (code == opcode) return fmt::format("opcode {} (0x{:02x})", name, opcode);
  }
  return fmt::format("opcode 0x{:02x}", opcode);
}

}  // namespace

Pickle::Pickle(std::span<const std::byte> bytes, std::string source, std::uint64_t begin)
    : source_(std::move(source)),
      bytes_(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMaxBytes)),
      begin_(begin) {
  run();
}

void Pickle::refuse(const std::string& what) const {
  throw Error(Error::Kind::Format,
              fmt::format("{}: {} at byte {} of the file", source_, what, begin_ + opcode_at_),
              kFix);
}

std::string_view Pickle::take(std::uint64_t count) {
  if (count > bytes_.size() - at_) {
    refuse(fmt::format("the pickle wants {} bytes where {} are left", count, bytes_.size() - at_));
  }
  const std::string_view out = bytes_.substr(at_, static_cast<std::size_t>(count));
  at_ += static_cast<std::size_t>(count);
  return out;
}

template <class T>
T Pickle::number() {
  T out;
  std::memcpy(&out, take(sizeof(T)).data(), sizeof(T));
  return out;
}

std::string Pickle::line() {
  const std::size_t end = bytes_.find('\n', at_);
  if (end == std::string_view::npos) refuse("a name without an end");
  std::string out(take(end - at_));
  take(1);
  return out;
}

void Pickle::run() {
  for (;;) {
    opcode_at_ = at_;
    const auto opcode = static_cast<unsigned>(static_cast<unsigned char>(take(1).front()));
    if (opcode == '.') break;
    step(opcode);
  }
  if (!marks_.empty() || stack_.size() != 1) refuse("the pickle ends with an unfinished value");
  root_ = stack_.front();
}

void Pickle::step(unsigned opcode) {
  if (constant(opcode) || text(opcode) || container(opcode) || memory(opcode) || object(opcode))
    return;
  switch (opcode) {
    case 0x80:  // PROTO
      if (const auto version = number<std::uint8_t>(); version > 5)
        refuse(fmt::format("a pickle of protocol {}", version));
      return;
    case 0x95:  // FRAME: a hint about lengths, which a reader of mapped bytes does not need
      number<std::uint64_t>();
      return;
    case 'c': {
      const std::string module = line();
      return global(module, line());
    }
    case 0x93: {  // STACK_GLOBAL
      const Id name = pop(), module = pop();
      if (nodes_[name].kind != Kind::String || nodes_[module].kind != Kind::String)
        refuse("a global whose name is not a string");
      return global(std::string(nodes_[module].text), std::string(nodes_[name].text));
    }
    case 'R':
      return reduce();
    case 'b':
      return build();
    case 'Q': {
      const Id id = pop();
      return push({.kind = Kind::Persistent, .items = {id}});
    }
    default:
      refuse(opcode_name(opcode) + ", which files of tensors do not need, stands");
  }
}

bool Pickle::object(unsigned opcode) {
  switch (opcode) {
    case 0x81:  // NEWOBJ
      new_object();
      return true;
    case 0x8F:  // EMPTY_SET
      push({.kind = Kind::List});
      return true;
    case 0x90:  // ADDITEMS
      append(pop_mark());
      return true;
    case 0x91:  // FROZENSET
      push({.kind = Kind::Tuple, .items = pop_mark()});
      return true;
    default:
      return false;
  }
}

bool Pickle::constant(unsigned opcode) {
  const auto integer = [&](std::int64_t value) {
    push({.kind = Kind::Int, .integer = value});
    return true;
  };
  switch (opcode) {
    case 'N':
      push({});
      return true;
    case 0x88:
    case 0x89:
      push({.kind = Kind::Bool, .integer = opcode == 0x88 ? 1 : 0});
      return true;
    case 'J':
      return integer(number<std::int32_t>());
    case 'K':
      return integer(number<std::uint8_t>());
    case 'M':
      return integer(number<std::uint16_t>());
    case 0x8A:
      push_long(number<std::uint8_t>());
      return true;
    case 'G':
      // The only number that pickles store in big-endian order.
      push({.kind = Kind::Float,
            .number = std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>()))});
      return true;
    default:
      return false;
  }
}

void Pickle::push_long(std::uint64_t length) {
  const std::string_view digits = take(length);
  if (digits.size() > sizeof(std::int64_t))
    return push({.kind = Kind::BigInt, .text = std::string(digits)});
  const bool negative = !digits.empty() && (static_cast<unsigned char>(digits.back()) & 0x80U) != 0;
  std::int64_t value = negative ? -1 : 0;
  std::memcpy(&value, digits.data(), digits.size());
  push({.kind = Kind::Int, .integer = value});
}

bool Pickle::text(unsigned opcode) {
  switch (opcode) {
    case 'X':
      push_text(Kind::String, number<std::uint32_t>());
      return true;
    case 0x8C:
      push_text(Kind::String, number<std::uint8_t>());
      return true;
    case 0x8D:
      push_text(Kind::String, number<std::uint64_t>());
      return true;
    case 'T':  // the str of Python 2
      push_text(Kind::String, number<std::uint32_t>());
      return true;
    case 'U':
      push_text(Kind::String, number<std::uint8_t>());
      return true;
    case 'B':
      push_text(Kind::Bytes, number<std::uint32_t>());
      return true;
    case 'C':
      push_text(Kind::Bytes, number<std::uint8_t>());
      return true;
    default:
      return false;
  }
}

void Pickle::push_text(Kind kind, std::uint64_t length) {
  const std::string_view content = take(length);
  if (kind == Kind::String && text::find_invalid_utf8(content))
    refuse("a text that is not UTF-8 stands");
  push({.kind = kind, .text = std::string(content)});
}

bool Pickle::container(unsigned opcode) {
  switch (opcode) {
    case '(':
      marks_.push_back(stack_.size());
      return true;
    case '}':
      push({.kind = Kind::Dict});
      return true;
    case ']':
      push({.kind = Kind::List});
      return true;
    case ')':
      push({.kind = Kind::Tuple});
      return true;
    case 't':
      push({.kind = Kind::Tuple, .items = pop_mark()});
      return true;
    case 0x85:
    case 0x86:
    case 0x87:
      push_tuple(opcode - 0x84);
      return true;
    case 'a':
      append({pop()});
      return true;
    case 'e':
      append(pop_mark());
      return true;
    case 's': {
      const Id value = pop(), key = pop();
      set_items({key, value});
      return true;
    }
    case 'u':
      set_items(pop_mark());
      return true;
    default:
      return false;
  }
}

bool Pickle::memory(unsigned opcode) {
  switch (opcode) {
    case 'q':
      put(number<std::uint8_t>());
      return true;
    case 'r':
      put(number<std::uint32_t>());
      return true;
    case 0x94:  // MEMOIZE
      put(static_cast<std::uint32_t>(memo_.size()));
      return true;
    case 'h':
      get(number<std::uint8_t>());
      return true;
    case 'j':
      get(number<std::uint32_t>());
      return true;
    default:
      return false;
  }
}

Pickle::Id Pickle::make(Node node) {
  if (nodes_.size() == kMaxNodes)
    refuse(fmt::format("the pickle has more than {} values", kMaxNodes));
  nodes_.push_back(std::move(node));
  return static_cast<Id>(nodes_.size() - 1);
}

void Pickle::push(Node node) {
  stack_.push_back(make(std::move(node)));
}

Pickle::Id Pickle::top() const {
  if (stack_.empty() || (!marks_.empty() && stack_.size() == marks_.back()))
    refuse("an opcode without the value that it works on stands");
  return stack_.back();
}

Pickle::Id Pickle::pop() {
  const Id id = top();
  stack_.pop_back();
  return id;
}

std::vector<Pickle::Id> Pickle::pop_mark() {
  if (marks_.empty()) refuse("an opcode without its mark stands");
  const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
  std::vector<Id> out(first, stack_.end());
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return out;
}

void Pickle::push_tuple(std::size_t count) {
  std::vector<Id> items(count);
  for (std::size_t i = count; i-- > 0;)
    items[i] = pop();
  push({.kind = Kind::Tuple, .items = std::move(items)});
}

void Pickle::append(const std::vector<Id>& items) {
  Node& list = nodes_[top()];
  if (list.kind != Kind::List) refuse(fmt::format("something is appended to {}", shown(list)));
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void Pickle::set_items(const std::vector<Id>& items) {
  Node& dict = nodes_[top()];
  if (dict.kind != Kind::Dict) refuse(fmt::format("an item is set in {}", shown(dict)));
  if (items.size() % 2 != 0) refuse("a key without a value stands");
  dict.items.insert(dict.items.end(), items.begin(), items.end());
}

void Pickle::global(const std::string& module, const std::string& name) {
  const std::string full = module + "." + name;
  if (const char* kind = tensor_kind(full)) {
    throw Error(Error::Kind::Unsupported,
                fmt::format("{}: it holds {} ({}), which is not read; at byte {} of the file",
                            source_,
                            kind,
                            full,
                            begin_ + opcode_at_),
                kDense);
  }
  const bool known =
      is_function(full) || is_element_type(full) || is_tensor_class(full) || is_described(full);
  if (!known) {
    refuse(fmt::format(
        "the pickle asks for {}, which no file of tensors needs (nothing of it was run),",
        checkpoint::JsonCursor::shown(full)));
  }
  push({.kind = Kind::Global, .text = full});
}

void Pickle::reduce() {
  const Id arguments = pop(), function = pop();
  const bool named = nodes_[function].kind == Kind::Global;
  if (named && is_described(nodes_[function].text)) {
    const std::string& name = nodes_[function].text;
    if (name == "collections.defaultdict") return push({.kind = Kind::Dict});
    if (name == "collections.deque") return push({.kind = Kind::List});
    return push({.kind = Kind::Object, .items = {function, arguments}});
  }
  if (!named || !is_function(nodes_[function].text)) {
    refuse(fmt::format("the pickle calls {} (nothing of it was run)", shown(nodes_[function])));
  }
  if (nodes_[arguments].kind != Kind::Tuple) {
    refuse(fmt::format(
        "the pickle calls {} with {}", shown(nodes_[function]), shown(nodes_[arguments])));
  }
  if (nodes_[function].text == "collections.OrderedDict")
    return push(ordered_dict(nodes_[arguments]));
  if (nodes_[function].text == "torch._tensor._rebuild_from_type_v2")
    return rebuild_subclass(nodes_[arguments]);
  push({.kind = Kind::Call, .items = {function, arguments}});
}

// (function, class, its arguments, attributes): a tensor with additional attributes is read as the
// tensor.
void Pickle::rebuild_subclass(const Node& arguments) {
  const bool fits = arguments.items.size() == 4 &&
                    nodes_[arguments.items[0]].kind == Kind::Global &&
                    nodes_[arguments.items[0]].text.starts_with("torch._utils._rebuild_") &&
                    nodes_[arguments.items[1]].kind == Kind::Global &&
                    is_tensor_class(nodes_[arguments.items[1]].text) &&
                    nodes_[arguments.items[2]].kind == Kind::Tuple;
  if (!fits) refuse("a tensor of a class that is not torch's own stands");
  push({.kind = Kind::Call, .items = {arguments.items[0], arguments.items[2]}});
}

void Pickle::new_object() {
  const Id arguments = pop(), type = pop();
  if (nodes_[type].kind != Kind::Global || nodes_[arguments].kind != Kind::Tuple)
    refuse(fmt::format(
        "an object of {} is made of {}", shown(nodes_[type]), shown(nodes_[arguments])));
  if (!is_described(nodes_[type].text)) {
    refuse(fmt::format("{} makes an object of {}", opcode_name(0x81), nodes_[type].text));
  }
  push({.kind = Kind::Object, .items = {type, arguments}});
}

// Empty, or (from Python 2) a list of pairs.
Pickle::Node Pickle::ordered_dict(const Node& arguments) {
  Node out{.kind = Kind::Dict};
  if (arguments.items.empty()) return out;
  const Node& list = nodes_[arguments.items.front()];
  if (arguments.items.size() > 1 || list.kind != Kind::List)
    refuse("an OrderedDict of something other than a list of pairs stands");
  // A list that many calls share would be copied for each.
  copied_ += list.items.size();
  if (copied_ > kMaxNodes) refuse("too large an OrderedDict stands");
  for (const Id id : list.items) {
    const Node& pair = nodes_[id];
    if ((pair.kind != Kind::List && pair.kind != Kind::Tuple) || pair.items.size() != 2)
      refuse("an OrderedDict of something other than pairs stands");
    out.items.insert(out.items.end(), pair.items.begin(), pair.items.end());
  }
  return out;
}

void Pickle::build() {
  const Id state = pop();
  if (nodes_[top()].kind == Kind::Object && nodes_[top()].items.size() == 2)
    return nodes_[top()].items.push_back(state);
  // A state_dict has the versions of its modules as an attribute, which does not affect its
  // tensors.
  if (nodes_[top()].kind != Kind::Dict) {
    refuse(fmt::format("the pickle sets the state of {} (nothing of it was run)",
                       shown(nodes_[top()])));
  }
}

void Pickle::put(std::uint32_t index) {
  memo_[index] = top();
}

void Pickle::get(std::uint32_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) refuse(fmt::format("value {} is used before it is there", index));
  stack_.push_back(found->second);
}

std::string Pickle::shown(const Node& node) {
  switch (node.kind) {
    case Kind::None:
      return "None";
    case Kind::Bool:
      return node.integer != 0 ? "True" : "False";
    case Kind::Int:
      return std::to_string(node.integer);
    case Kind::BigInt:
      return "a number of more than 64 bits";
    case Kind::Float:
      return text::number(node.number);
    case Kind::String:
      return "the text " + checkpoint::JsonCursor::shown(node.text);
    case Kind::Bytes:
      return "bytes";
    case Kind::List:
      return "a list";
    case Kind::Tuple:
      return "a tuple";
    case Kind::Dict:
      return "a dict";
    case Kind::Global:
      return node.text;
    case Kind::Persistent:
      return "a storage";
    case Kind::Call:
      return "an object";
    case Kind::Object:
      return "an object of a class";
  }
  return "nothing";
}

}  // namespace tessera::interop
