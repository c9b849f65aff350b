// safetensors: round trips and every rule of the format, each with a file that breaks that rule alone.
#include "qkv/io/safetensors.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "io/bytes.h"
#include "qkv/io/file.h"

namespace qkv::test {
namespace {

std::string file_text(const std::string& header, const std::string& data) {
  return little_endian_text(header.size(), 8) + header + data;
}

// Two tensors of 4 and 8 bytes; each text below changes one thing.
const std::string kGood =
    R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"I16","shape":[2,2],"data_offsets":[4,12]}})";
const std::string kData(12, 'x');

std::string with(const std::string& from, const std::string& to) { return replaced(kGood, from, to); }

StateDict parse(const std::string& text) { return io::parse_safetensors(bytes_of(text)); }

StateDict small_state() {
  StateDict state;
  state.add("first", counting_tensor(DType::kU8, {3}));
  state.add("second", counting_tensor(DType::kF64, {2, 1}));
  state.metadata["format"] = "pt";
  return state;
}

TEST(Safetensors, RoundTripOfEveryDtypeKeepsNamesOrderAndBits) {
  StateDict state;
  for (const DType dtype : kAllDTypes) state.add(std::string(dtype_name(dtype)), counting_tensor(dtype, {2, 3}));
  state.add("rank 0", counting_tensor(DType::kF32, {}));
  state.add("empty", counting_tensor(DType::kF64, {4, 0, 2}));
  state.add("ünï \n\"\\ \x1b \xf0\x9f\x98\x80", counting_tensor(DType::kU8, {1}));
  state.metadata["a \"key\""] = "a\nvalue";
  EXPECT_TRUE(same(io::parse_safetensors(io::write_safetensors(state)), state));
}

/// Names of backslashes and quotes alone, in time that is proportional to them: with its square this took hours.
TEST(Safetensors, MillionsOfEscapesAreRead) {
  std::string escapes;
  for (int n = 0; n < 2'000'000; ++n) escapes += R"(\\)";  // one backslash
  for (int n = 0; n < 2'000'000; ++n) escapes += R"(\")";  // one quote
  const StateDict state =
      parse(file_text("{\"" + escapes + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "1234"));
  ASSERT_EQ(state.size(), 1u);
  EXPECT_EQ(state.entries()[0].name.size(), escapes.size() / 2);
}

/// Where a name begins is where an error points.
TEST(Safetensors, ANameOfEscapesIsPointedAt) {
  for (const std::string name : {R"(\\)", R"(\")", R"(\\\"\")", R"(a\"\\)", R"(\\a\"b)"}) {
    const std::string field = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
    const std::string before = "{\"" + name + "\":" + field + ",";
    expect_format_error(
        [&] { parse(file_text(before + "\"" + name + "\":" + field + "}", "1234")); }, 8 + before.size(), "a second");
  }
}

TEST(Safetensors, AnEmptyStateIsAFile) {
  EXPECT_TRUE(same(io::parse_safetensors(io::write_safetensors(StateDict())), StateDict()));
  EXPECT_TRUE(parse(file_text(R"({"__metadata__":{}})", "")).metadata.empty());
}

TEST(Safetensors, WriterAlignsHeaderAndTensors) {
  StateDict state;
  state.add("odd", counting_tensor(DType::kU8, {3}));
  state.add("wide", counting_tensor(DType::kF64, {1}));
  state.add("half", counting_tensor(DType::kF16, {1}));
  const Bytes file = io::write_safetensors(state);
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  const std::size_t data_at = file.size() - 8 - 2 - 3;
  EXPECT_EQ(data_at % 8, 0u);
  EXPECT_EQ(text.substr(0, 8), little_endian_text(data_at - 8, 8));
  EXPECT_NE(text.find(R"("wide":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})"), std::string::npos);
  EXPECT_NE(text.find(R"("half":{"dtype":"F16","shape":[1],"data_offsets":[8,10]})"), std::string::npos);
  EXPECT_NE(text.find(R"("odd":{"dtype":"U8","shape":[3],"data_offsets":[10,13]})"), std::string::npos);
}

TEST(Safetensors, HeaderNeedsNoOrderAndMayBePadded) {
  const std::string header = R"({"late":{"shape":[1],"data_offsets":[4,5],"dtype":"U8"},)"
                             R"("early":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}   )";
  const StateDict state = parse(file_text(header, "abcde"));
  EXPECT_EQ(state.entries()[0].name, "late");
  EXPECT_EQ(state.at("late").bytes, bytes_of("e"));
  EXPECT_EQ(state.at("early").bytes, bytes_of("abcd"));
}

TEST(Safetensors, EveryRuleOfTheHeaderIsCheckedWhereItBreaks) {
  const std::string deep(100'000, '[');
  std::string axes = "[";
  for (int i = 0; i < 64; ++i) axes += "1,";
  const Rule rules[] = {
      {"empty header", "^", "begin with {"},
      {"space first", "^ " + kGood, "begin with {"},
      {"not an object", "^[]", "begin with {"},
      {"not JSON", R"({"a"^})", "must be JSON"},
      {"not ended", R"({"a":^{)", "must be JSON"},
      {"text after", kGood + "^x", "must be JSON"},
      {"a NUL after", kGood + "^" + std::string(1, '\0'), "NUL"},
      {"not UTF-8", "{\"a^\xff\":{}}", "UTF-8"},
      {"overlong UTF-8", "{\"a^\xc0\xaf\":{}}", "UTF-8"},
      {"lone surrogate", R"({"\ud800^":{}})", "UTF-8"},
      {"duplicate name", with(R"("b")", R"(^"a")"), "a second \"a\""},
      {"duplicate name, escaped", with(R"("b")", R"(^"\u0061")"), "a second \"a\""},
      {"duplicate field", with(R"("shape":[1])", R"("shape":[1],^"shape":[1])"), "a second shape"},
      {"unknown field", with(R"("shape":[1])", R"("shape":[1],^"strides":[1])"), "got \"strides\""},
      {"missing field", with(R"("shape":[1],"data_offsets":[0,4]})", R"("data_offsets":[0,4]^})"), "all required"},
      {"value no object", with(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "^1"), "must be an object"},
      {"value null", with(R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", "nul^l"), "must be an object"},
      {"dtype no string", with(R"("F32")", "^7"), "dtype must be a string"},
      {"dtype a list", with(R"("F32")", "^[]"), "dtype must be a string"},
      {"unknown dtype", with(R"("F32")", R"(^"F33")"), "tensor \"a\": the dtype must be a supported one: got \"F33\""},
      {"8-bit float", with(R"("F32")", R"(^"F8_E4M3")"), "got \"F8_E4M3\""},
      {"4-bit float", with(R"("F32")", R"(^"F4")"), "got \"F4\""},
      {"complex", with(R"("F32")", R"(^"C64")"), "got \"C64\""},
      {"hostile dtype", with(R"("F32")", R"(^"\u001b[31m\\\"")"), R"("\x1b[31m\\\"")"},
      {"shape a number", with("[1]", "^1"), "lists of whole numbers"},
      {"shape nested", with("[1]", "[^[1]]"), "lists of whole numbers"},
      {"shape of strings", with("[1]", "[^\"1\"]"), "lists of whole numbers"},
      {"negative size", with("[1]", "[^-1]"), "negative"},
      {"minus zero", with("[1]", "[^-0]"), "negative"},
      {"float size", with("[1]", "[^1.0]"), "whole number"},
      {"exponent size", with("[1]", "[^1e0]"), "whole number"},
      {"size past 2^53", with("[1]", "[^9007199254740993]"), "2^53"},
      {"size past 2^64", with("[1]", "[^18446744073709551616]"), "2^53"},
      {"true as size", with("[1]", "[tru^e]"), "lists of whole numbers"},
      {"65 axes", with("[1]", axes + "^1]"), "64 axes"},
      {"product overflows", with("[1]", "^[4294967296,4294967296,4294967296]"), "63 bits"},
      {"axes of nothing", with("[1]", "^[9007199254740992,0]"), "beside an axis of 0 in 32"},
      {"product overflows beside 0", with("[1]", "^[0,4294967296,4294967296,4294967296]"), "63 bits"},
      {"bytes overflow", with("[1]", "^[4294967296,536870912]"), "63 bits"},
      {"three offsets", with("[0,4]", "[0,4,^4]"), "two numbers"},
      {"one offset", with("[0,4]", "[0^]"), "two numbers"},
      {"ends before it begins", with("[0,4]", "^[4,0]"), "end before"},
      {"past the file", with("[4,12]", "^[4,13]"), "must end within the file"},
      {"a hole", with("[4,12]", "^[5,12]"), "hole"},
      {"a hole at the start", with("[0,4]", "^[1,4]"), "hole"},
      {"overlap", with("[4,12]", "^[3,12]"), "overlap"},
      {"same range", with("[4,12]", "^[0,4]"), "overlap"},
      {"longer than the shape", with(R"([2,2],"data_offsets":[4,12])", R"([2,1],"data_offsets":^[4,12])"),
          "as shape and dtype say, 4"},
      {"metadata a string", R"({"__metadata__":^"x"})", "must be an object"},
      {"metadata of numbers", R"({"__metadata__":{"k":^1}})", "strings to strings"},
      {"metadata of objects", R"({"__metadata__":{"k":^{}}})", "strings to strings"},
      {"metadata of null", R"({"__metadata__":{"k":nul^l}})", "strings to strings"},
      {"duplicate metadata", R"({"__metadata__":{"k":"v",^"k":"v"}})", "a second \"k\""},
      {"metadata twice", R"({"__metadata__":{},^"__metadata__":{}})", "a second"},
      {"deep nesting", R"({"a":^)" + deep, "must be an object"},
  };
  ASSERT_NO_THROW(parse(file_text(kGood, kData)));
  expect_rules(rules, 8, [](const std::string& header) { parse(file_text(header, kData)); });
}

TEST(Safetensors, LengthsAreCheckedBeforeTheyAreUsed) {
  expect_format_error([] { parse(""); }, 0, "8 bytes of length");
  expect_format_error([] { parse("1234567"); }, 7, "8 bytes of length");
  expect_format_error([] { parse(little_endian_text(1000, 8) + "{}"); }, 0, "must end within the file");
  expect_format_error([] { parse(little_endian_text(100'000'000, 8) + "{}"); }, 0, "must end within the file");
  expect_format_error([] { parse(little_endian_text(100'000'001, 8) + "{}"); }, 0, "at most 100000000");
  expect_format_error([] { parse(little_endian_text(~std::uint64_t{0}, 8) + "{}"); }, 0, "at most 100000000");
  expect_format_error([] { parse("\x93NUMPY\x02\x01"); }, 0, "got a .npy file");
  expect_format_error([] { parse(file_text(kGood, kData + "y")); }, 8 + kGood.size() + 12, "1 bytes more");
  expect_format_error([] { parse(file_text("{}", "y")); }, 10, "1 bytes more");
}

// The published attack: many names for the same bytes would let a small file exhaust memory.
TEST(Safetensors, ManyNamesForTheSameBytesAreRefused) {
  const auto attack = [](int count) {
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
      header += (i == 0 ? "\"" : ",\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[12],"data_offsets":[0,12]})";
    }
    return file_text(header + "}", kData);
  };
  const std::string two = attack(2);
  expect_format_error([&] { parse(two); }, two.rfind('['), "overlap");
  EXPECT_FALSE(parses_or_refuses([&] { parse(attack(60'000)); }, attack(60'000).size()));
  const std::string many = attack(70'000);
  const std::string first_too_many = "\"65537\":";
  expect_format_error([&] { parse(many); }, many.find(first_too_many), "65536 tensors");
}

TEST(Safetensors, PartsAndFlippedBitsAreReadOrRefused) {
  const Bytes file = io::write_safetensors(small_state());
  expect_whole_files_only(
      file, [](std::span<const std::byte> part) { io::parse_safetensors(part); }, 8 * 8);
}

TEST(Safetensors, NamesInMessagesCannotDriveATerminal) {
  const Marked header(R"({"\u001b]0;x\u0007\u202e":{"dtype":^"F4","shape":[],"data_offsets":[0,0]}})");
  expect_format_error([&] { parse(file_text(header.text, "")); }, 8 + header.at, R"(tensor "\x1b]0;x\x07\u{202e}")");
}

TEST(Safetensors, WriterRefusesWhatTheFormatCannotHold) {
  StateDict named;
  named.add("__metadata__", counting_tensor(DType::kU8, {}));
  EXPECT_THROW(io::write_safetensors(named), OptionError);
  StateDict not_text;
  not_text.add("\xff", counting_tensor(DType::kU8, {}));
  EXPECT_THROW(io::write_safetensors(not_text), OptionError);
  StateDict wrong;
  wrong.add("a", counting_tensor(DType::kU8, {3}));
  AnyTensor short_of_bytes = counting_tensor(DType::kF32, {3});
  short_of_bytes.bytes.pop_back();
  wrong.add("b", std::move(short_of_bytes));
  EXPECT_THROW(io::write_safetensors(wrong), ShapeError);
}

TEST(Safetensors, ReadsWhatPythonWrote) {
  const StateDict state = io::load_safetensors(data_file("python.safetensors"));
  EXPECT_EQ(state.metadata, (std::map<std::string, std::string>{{"format", "np"}, {"note", "grüße"}}));
  ASSERT_EQ(state.size(), 14u);
  for (const DType dtype : kAllDTypes) {
    if (dtype == DType::kBF16) continue;  // NumPy has none
    const Tensor<double> values = to_f64(state.at(dtype_name(dtype)));
    ASSERT_EQ(values.sizes(), (std::vector<Index>{2, 3})) << dtype_name(dtype);
    for (Index i = 0; i < 6; ++i)
      EXPECT_EQ(values.data()[i], dtype == DType::kBool ? double(i % 2) : double(i)) << dtype_name(dtype);
  }
  EXPECT_TRUE(state.at("rank 0").sizes.empty());
  EXPECT_EQ(to_f64(state.at("rank 0")).data()[0], 0.5);
  EXPECT_EQ(state.at("empty").sizes, (std::vector<Index>{4, 0, 2}));
}

/// Parts of tensors are the bytes of the whole, and a plan is the file that is written, without its data.
TEST(Safetensors, PartsAndPlansAreThoseOfTheWholeFile) {
  StateDict state = small_state();
  state.add("third", counting_tensor(DType::kF32, {2, 3}));
  const auto path = std::filesystem::temp_directory_path() / "qkv_safetensors_parts.safetensors";
  io::save_safetensors(path, state);
  const io::SafetensorsParts parts(path);
  std::filesystem::remove(path);  // it stays open
  ASSERT_EQ(parts.tensors().size(), state.size());
  EXPECT_EQ(parts.find("fourth"), nullptr);
  for (const auto& [name, tensor] : state.entries()) {
    const io::TensorEntry* const entry = parts.find(name);
    ASSERT_NE(entry, nullptr);
    EXPECT_EQ(entry->sizes, tensor.sizes);
    EXPECT_EQ(entry->dtype, tensor.dtype);
    ASSERT_EQ(entry->bytes(), tensor.bytes.size());
    for (std::uint64_t from = 0; from <= entry->bytes(); ++from) {
      std::vector<std::byte> part(entry->bytes() - from);
      parts.read(*entry, from, part);
      EXPECT_TRUE(std::ranges::equal(part, std::span(tensor.bytes).subspan(from)));
      part.resize(part.size() + 1);
      EXPECT_THROW(parts.read(*entry, from, part), OptionError);
    }
  }
  std::vector<io::TensorEntry> entries;
  for (const auto& [name, tensor] : state.entries()) entries.push_back({name, tensor.dtype, tensor.sizes, 0});
  const io::SafetensorsPlan plan = io::plan_safetensors(entries, state.metadata);
  std::vector<std::byte> file = plan.head;
  file.resize(plan.bytes);
  for (const io::TensorEntry& entry : plan.tensors)
    std::ranges::copy(state.at(entry.name).bytes, file.begin() + static_cast<std::ptrdiff_t>(entry.at));
  EXPECT_EQ(file, io::write_safetensors(state));
  constexpr Index half = Index{1} << 62;
  for (const std::vector<std::vector<Index>>& sizes :
      {std::vector<std::vector<Index>>{{-1}}, {{half, half}}, {{half}, {half}}, {std::vector<Index>(65, 1)}}) {
    entries.clear();
    for (const auto& one : sizes) entries.push_back({std::to_string(entries.size()), DType::kI8, one, 0});
    EXPECT_THROW(io::plan_safetensors(entries), ShapeError) << entries.back().sizes.size();
  }
}

RC_GTEST_PROP(SafetensorsProperty, AnyStateComesBack, ()) {
  StateDict state;
  const auto names = *rc::gen::unique<std::vector<std::string>>(rc::gen::string<std::string>());
  for (const std::string& raw : names) {
    std::string name;
    for (const char c : raw) name += static_cast<char>(c & 0x7F);  // ASCII is UTF-8; all 128 of them
    if (name == "__metadata__" || state.contains(name)) continue;
    const auto sizes = *rc::gen::resize(4, rc::gen::container<std::vector<Index>>(rc::gen::inRange<Index>(0, 4)));
    state.add(name, counting_tensor(*rc::gen::elementOf(kAllDTypes), sizes));
    state.metadata[name] = name;
  }
  RC_ASSERT(same(io::parse_safetensors(io::write_safetensors(state)), state));
}

}  // namespace
}  // namespace qkv::test
