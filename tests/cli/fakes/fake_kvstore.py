from fake_service import serve

if __name__ == "__main__":
    raise SystemExit(serve("kvstore"))
