// Isend, Irecv, Testsome. Each transport is a tag of one communicator of qkv's own; a mutex puts the calls of both in a
// row. The library is loaded when it is asked for, so that one program or wheel runs with it and without: a list of the
// functions replaces mpi.h.
#include "qkv/dist/mpi.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <climits>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/check.h"

namespace qkv::inline v0::dist {
namespace {

/// Open MPI's library. Handles are pointers to objects that it exports, as its mpi.h has them since 1.5.
struct OpenMpi {
  using Handle = void*;
  using Request = void*;
  /// MPI_Status as Open MPI lays it out.
  struct Status {
    int source, tag, error, cancelled;
    std::size_t bytes;
  };
  static constexpr int kSuccess = 0, kUndefined = -32766, kTruncated = 15, kInStatus = 18, kSerialized = 2;

#define QKV_MPI_FUNCTIONS(X)                                     \
  X(Init_thread, int*, char***, int, int*)                       \
  X(Initialized, int*)                                           \
  X(Query_thread, int*)                                          \
  X(Finalize)                                                    \
  X(Comm_rank, Handle, int*)                                     \
  X(Comm_size, Handle, int*)                                     \
  X(Comm_dup, Handle, Handle*)                                   \
  X(Comm_free, Handle*)                                          \
  X(Comm_set_errhandler, Handle, Handle)                         \
  X(Isend, const void*, int, Handle, int, int, Handle, Request*) \
  X(Irecv, void*, int, Handle, int, int, Handle, Request*)       \
  X(Testsome, int, Request*, int*, int*, Status*)                \
  X(Barrier, Handle)                                             \
  X(Error_string, int, char*, int*)
#define QKV_DECLARE(name, ...) int (*name)(__VA_ARGS__);
  QKV_MPI_FUNCTIONS(QKV_DECLARE)
#undef QKV_DECLARE
  Handle comm_world, byte, errors_return;
  Request request_null;
  std::string version;

  /// Throws UnsupportedError: no such library, or one that is not Open MPI.
  explicit OpenMpi(const std::string& library) {
    // Global: Open MPI loads plug-ins of its own, which look for its symbols.
    void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (handle == nullptr) {
      const char* const reason = ::dlerror();
      fail<UnsupportedError>("Mpi", "MPI needs Open MPI's library (Debian: apt-get install openmpi-bin): got ",
          reason == nullptr ? "no reason" : reason);
    }
    const auto get_version = reinterpret_cast<int (*)(char*, int*)>(::dlsym(handle, "MPI_Get_library_version"));
    std::array<char, 8192> text{};  // MPICH's MPI_MAX_LIBRARY_VERSION_STRING, the longest of all
    int length = 0;
    if (get_version != nullptr) get_version(text.data(), &length);
    version = get_version == nullptr ? "no MPI" : std::string(text.data());
    version = version.substr(0, version.find('\n'));
    const auto find = [&](auto& target, const char* name) {
      void* const symbol = ::dlsym(handle, name);
      check<UnsupportedError>(symbol != nullptr, "Mpi", "the library must be Open MPI, version 4 or 5: ", library,
          " is ", version, " and has no ", name);
      target = reinterpret_cast<std::remove_reference_t<decltype(target)>>(symbol);
    };
    find(comm_world, "ompi_mpi_comm_world");
    find(byte, "ompi_mpi_byte");
    find(errors_return, "ompi_mpi_errors_return");
    find(request_null, "ompi_request_null");
#define QKV_FIND(name, ...) find(name, "MPI_" #name);
    QKV_MPI_FUNCTIONS(QKV_FIND)
#undef QKV_FIND
  }
};

std::string error_text(const OpenMpi& mpi, int code) {
  char text[1024] = {};
  int length = 0;
  mpi.Error_string(code, text, &length);
  return text;
}

void require(const OpenMpi& mpi, int code, const char* what) {
  if (code != OpenMpi::kSuccess) fail<TransportError>("Mpi", what, " must succeed: got ", error_text(mpi, code));
}

/// Shared by both transports.
struct World {
  World(const OpenMpi& library, std::size_t piece) : mpi(library), piece_bytes(piece) {}
  const OpenMpi& mpi;
  const std::size_t piece_bytes;
  std::mutex mutex;
  OpenMpi::Handle comm = nullptr;
  int rank = 0, size = 1;
};

class MpiTransport final : public Transport {
 public:
  MpiTransport(World& world, int tag) : world_(world), tag_(tag) {}
  int rank() const override { return world_.rank; }
  int size() const override { return world_.size; }

  Ticket send(int to, std::span<const std::byte> bytes) override {
    return start("Transport::send", to, const_cast<std::byte*>(bytes.data()), bytes.size(), false);
  }
  Ticket receive(int from, std::span<std::byte> bytes) override {
    return start("Transport::receive", from, bytes.data(), bytes.size(), true);
  }
  bool poll(Ticket ticket) override {
    check<OptionError>(ticket.id >= 0 && ticket.id < next_, "Transport::poll",
        "the ticket must be of this transport: got ", ticket.id);
    if (!error_.empty()) throw TransportError(error_);
    move_on();
    return !open_.contains(ticket.id);
  }
  bool idle() const { return open_.empty(); }

 private:
  /// One request of MPI: a message, or a piece of a long one.
  struct Piece {
    Index id;
    int peer;
    std::size_t expected;  // bytes, of a receive
    bool receives;
  };

  /// Pieces of piece_bytes and a last one that is shorter, so that a receiver of another length meets a piece of
  /// another length.
  Ticket start(const char* function, int peer, std::byte* data, std::size_t bytes, bool receives) {
    if (!error_.empty()) throw TransportError(error_);
    check<OptionError>(
        peer >= 0 && peer < size(), function, "the rank must be in [0, size): got ", peer, ", size ", size());
    const std::lock_guard lock(world_.mutex);
    const OpenMpi& mpi = world_.mpi;
    std::size_t at = 0;
    for (bool last = false; !last;) {
      const std::size_t count = std::min(bytes - at, world_.piece_bytes);
      last = count < world_.piece_bytes;
      indices_.reserve(requests_.size() + 1), statuses_.reserve(requests_.size() + 1);  // poll allocates nothing
      OpenMpi::Request request = nullptr;
      const int length = static_cast<int>(count);
      const int code = receives ? mpi.Irecv(data + at, length, mpi.byte, peer, tag_, world_.comm, &request)
                                : mpi.Isend(data + at, length, mpi.byte, peer, tag_, world_.comm, &request);
      if (code != OpenMpi::kSuccess) break_off("rank " + std::to_string(peer) + ": " + error_text(mpi, code));
      requests_.push_back(request);
      pieces_.push_back({next_, peer, count, receives});
      ++open_[next_];
      if (peer == rank()) compare_with_own(count, receives);
      at += count;
    }
    return {next_++};
  }

  /// Open MPI cuts a message to oneself that is too long, and says nothing.
  void compare_with_own(std::size_t count, bool receives) {
    own_[receives ? 1 : 0].push_back(count);
    auto& [sent, expected] = own_;
    if (sent.empty() || expected.empty()) return;
    if (sent.front() != expected.front()) differ(rank(), std::to_string(sent.front()), expected.front());
    sent.pop_front();
    expected.pop_front();
  }

  [[noreturn]] void differ(int peer, const std::string& sent, std::size_t expected) {
    break_off("a message must have the length of its receive: rank " + std::to_string(peer) + " sent " + sent +
              " bytes, rank " + std::to_string(rank()) + " expects " + std::to_string(expected));
  }

  void move_on() {
    const std::lock_guard lock(world_.mutex);
    const int count = static_cast<int>(requests_.size());
    if (count == 0) return;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int done = 0;
    const int code = world_.mpi.Testsome(count, requests_.data(), &done, indices_.data(), statuses_.data());
    if (code != OpenMpi::kSuccess && code != OpenMpi::kInStatus) break_off(error_text(world_.mpi, code));
    if (done == OpenMpi::kUndefined || done == 0) return;
    for (int n = 0; n < done; ++n) {
      const Piece& piece = pieces_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(n)])];
      const OpenMpi::Status& status = statuses_[static_cast<std::size_t>(n)];
      // Only where the call says so are the statuses' errors set.
      const int error = code == OpenMpi::kInStatus ? status.error : OpenMpi::kSuccess;
      if (piece.receives &&
          (error == OpenMpi::kTruncated || (error == OpenMpi::kSuccess && status.bytes != piece.expected))) {
        differ(piece.peer, error == OpenMpi::kTruncated ? "more" : std::to_string(status.bytes), piece.expected);
      }
      if (error != OpenMpi::kSuccess)
        break_off("rank " + std::to_string(piece.peer) + ": " + error_text(world_.mpi, error));
      if (--open_[piece.id] == 0) open_.erase(piece.id);
    }
    std::size_t kept = 0;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == world_.mpi.request_null) continue;
      requests_[kept] = requests_[i];
      pieces_[kept++] = pieces_[i];
    }
    requests_.resize(kept);
    pieces_.resize(kept);
  }

  [[noreturn]] void break_off(const std::string& text) {
    error_ = "[Transport] " + text;
    throw TransportError(error_);
  }

  World& world_;
  const int tag_;
  Index next_ = 0;
  std::vector<OpenMpi::Request> requests_;
  std::vector<Piece> pieces_;            // of the same requests
  std::unordered_map<Index, int> open_;  // pieces that are under way, by ticket
  std::vector<int> indices_;
  std::vector<OpenMpi::Status> statuses_;
  std::array<std::deque<std::size_t>, 2> own_;  // lengths of messages to oneself: sent, expected
  std::string error_;
};

}  // namespace

struct Mpi::Impl {
  explicit Impl(const MpiOptions& options)
      : mpi(options.library), world(mpi, options.piece_bytes), data(world, 1), control(world, 2) {}
  OpenMpi mpi;
  World world;
  MpiTransport data, control;
  bool started = false;
};

Mpi::Mpi(const MpiOptions& options) {
  check<OptionError>(options.piece_bytes >= 1 && options.piece_bytes <= INT_MAX, "Mpi",
      "a piece must have 1 to 2^31 - 1 bytes: got ", options.piece_bytes);
  impl_ = std::make_unique<Impl>(options);
  const OpenMpi& mpi = impl_->mpi;
  int running = 0, threads = 0;
  require(mpi, mpi.Initialized(&running), "MPI_Initialized");
  if (running == 0) {
    require(mpi, mpi.Init_thread(nullptr, nullptr, OpenMpi::kSerialized, &threads), "MPI_Init_thread");
    impl_->started = true;
  } else {
    require(mpi, mpi.Query_thread(&threads), "MPI_Query_thread");
  }
  check<UnsupportedError>(threads >= OpenMpi::kSerialized, "Mpi",
      "MPI must be started with MPI_THREAD_SERIALIZED (2) or more: got ", threads);
  World& world = impl_->world;
  require(mpi, mpi.Comm_set_errhandler(mpi.comm_world, mpi.errors_return), "MPI_Comm_set_errhandler");
  require(mpi, mpi.Comm_dup(mpi.comm_world, &world.comm), "MPI_Comm_dup");
  require(mpi, mpi.Comm_set_errhandler(world.comm, mpi.errors_return), "MPI_Comm_set_errhandler");
  require(mpi, mpi.Comm_rank(world.comm, &world.rank), "MPI_Comm_rank");
  require(mpi, mpi.Comm_size(world.comm, &world.size), "MPI_Comm_size");
}

Mpi::~Mpi() = default;

Transport& Mpi::data() { return impl_->data; }
Transport& Mpi::control() { return impl_->control; }
const std::string& Mpi::version() const { return impl_->mpi.version; }

void Mpi::close() {
  check<OptionError>(impl_->data.idle() && impl_->control.idle(), "Mpi::close",
      "every operation must be complete: got some under way");
  const std::lock_guard lock(impl_->world.mutex);
  const OpenMpi& mpi = impl_->mpi;
  require(mpi, mpi.Barrier(impl_->world.comm), "MPI_Barrier");
  require(mpi, mpi.Comm_free(&impl_->world.comm), "MPI_Comm_free");
  if (impl_->started) require(mpi, mpi.Finalize(), "MPI_Finalize");
}

}  // namespace qkv::inline v0::dist
