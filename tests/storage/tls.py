"""TLS before a server of the tests, with a certificate authority of its own."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make_certificates(folder: Path) -> tuple[Path, Path]:
    """An authority's certificate, and key and certificate that it gave to 127.0.0.1, as PEM files."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority for tests")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    root = _builder(issuer, issuer, authority).add_extension(x509.BasicConstraints(True, None), critical=True)
    leaf = _builder(subject, issuer, server).add_extension(here, critical=False)
    ca, own = folder / "ca.pem", folder / "server.pem"
    ca.write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    key = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    own.write_bytes(key + leaf.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return ca, own


@contextlib.contextmanager
def tls_before(endpoint: str, certificate: Path) -> Iterator[str]:
    """The https:// endpoint of a server that passes everything on to a plain one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    started, port, stopping = threading.Event(), 0, []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection(urlsplit(endpoint).hostname, urlsplit(endpoint).port)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(_pass(reader, inner[1]), _pass(inner[0], writer))

    async def serve() -> None:
        nonlocal port
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(lambda *_: None)  # clients without trust leave in mid-handshake
        server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        stopping.append(lambda: loop.call_soon_threadsafe(stop.set))
        started.set()
        await stop.wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield f"https://127.0.0.1:{port}"
    finally:
        stopping[0]()
        thread.join(10)


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - day)
        .not_valid_after(now + day)
    )
